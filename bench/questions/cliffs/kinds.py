"""The time of every kind of leaf and container of tests/torch/test_kinds.py, checked first."""

import sys
import time
from collections.abc import Callable
from contextlib import closing

from bench.questions.cliffs.loads import batches
from bench.questions.cliffs.run import loader_class
from bench.report.machine import CHECKOUT

_BATCHES = 60
_LONGEST_S = 0.4  # for one kind: ten thousand leaves take a while with torch
_TIMEOUT_S = 10  # torch's workers say nothing of what they cannot send


def timed(contender: str) -> dict:
    """Return the time of each kind, or why it has none, with one worker."""
    loader = loader_class(contender)  # first: the table imports shmloader, and it may be another's
    sys.path.append(str(CHECKOUT))
    from bench.questions.kinds import equal
    from tests.torch import test_kinds as table  # needs pytest and hypothesis, as the tests do

    kinds = {**table.NATIVE, **table.PICKLED}
    return {
        "kinds": {
            name: _kind(
                loader, make, lambda batch, name=name, make=make: equal(table, name, make(), batch)
            )
            for name, make in kinds.items()
        }
    }


def _kind(loader_class: type, make: Callable[[], object], is_right: Callable) -> dict:
    load = batches(_BATCHES, lambda _: make())
    try:
        with closing(
            loader_class(load.dataset, num_workers=1, timeout=_TIMEOUT_S, **load.arguments)
        ) as loader:
            drawn = iter(loader)
            first = next(drawn)
            begin, counted = time.perf_counter(), 0
            for _ in drawn:
                counted += 1
                if time.perf_counter() - begin > _LONGEST_S:
                    break
            seconds = time.perf_counter() - begin
    except Exception as error:  # any error is the record's content
        return {"mistake": f"{type(error).__name__}: {error}"}
    if not is_right(first):
        return {"mistake": "what arrives is not what was made"}
    return {"ms": seconds * 1e3 / counted}
