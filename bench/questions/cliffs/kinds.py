"""The time of every kind of leaf and container of tests/torch/test_kinds.py, checked first."""

import os
import pickle
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np

from bench.questions.cliffs.loads import batches
from bench.questions.cliffs.run import loader_class
from bench.report.machine import CHECKOUT

_BATCHES = 400
_STRETCH = (
    20  # batches; the shortest stretch counts, because a wake-up may take longer than a batch
)
_LONGEST_S = 0.3  # for one kind: ten thousand leaves take a while with torch
_TIMEOUT_S = 3  # torch's workers say nothing of what they cannot send


def timed(contender: str) -> dict:
    """Return the time of each kind, or why it has none, with one worker."""
    loader = loader_class(contender)  # first: the table imports shmloader, and it may be another's
    sys.path.append(str(CHECKOUT))
    from bench.questions.kinds import equal
    from tests.torch import test_kinds as table  # needs pytest and hypothesis, as the tests do

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # what torch cannot send
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # torch needs two for each tensor

    def is_right(name: str, make: Callable[[], object], batch: object) -> bool:
        if equal(table, name, make(), batch):
            return True
        # A pickle, which is what torch sends, turns an array's bytes to the machine's order.
        return isinstance(batch, np.ndarray) and equal(table, name, _pickled(make()), batch)

    kinds = {**table.NATIVE, **table.PICKLED}
    return {"kinds": {name: _kind(loader, name, make, is_right) for name, make in kinds.items()}}


def _pickled(value: object) -> object:
    return pickle.loads(pickle.dumps(value))


def _kind(loader_class: type, name: str, make: Callable[[], object], is_right: Callable) -> dict:
    load = batches(_BATCHES, lambda _: make())
    try:
        with closing(
            loader_class(load.dataset, num_workers=1, timeout=_TIMEOUT_S, **load.arguments)
        ) as loader:
            drawn = iter(loader)
            first = next(drawn)
            arrived, begin = [], time.perf_counter()
            while not arrived or (len(arrived) < _BATCHES - 1 and arrived[-1] - begin < _LONGEST_S):
                next(drawn)
                arrived.append(time.perf_counter())
    except Exception as error:  # any error is the record's content
        return {"mistake": f"{type(error).__name__}: {error}"}
    if not is_right(name, make, first):
        return {"mistake": "what arrives is not what was made"}
    return {"ms": _shortest_s([begin, *arrived]) * 1e3}


def _shortest_s(times: list[float]) -> float:
    """Return the seconds per batch of the shortest stretch; of all, if they are few."""
    stretch = min(_STRETCH, len(times) - 1)
    return min(end - start for start, end in zip(times, times[stretch:], strict=False)) / stretch
