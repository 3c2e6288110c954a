"""
Every kind of leaf and container: what torch delivers, what ours delivers, and how it travelled.

    python -m bench kinds

The kinds are those of tests/torch/test_kinds.py. `make cliffs` times them.
"""

import os
import pickle
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy
import torch

from bench.loaders import LOADERS
from bench.loads import wholes
from bench.question import Options, Question
from bench.report.machine import CHECKOUT

_BATCHES = 400
# Batches; the shortest stretch counts, because a wake-up may take longer than a batch.
_STRETCH = 20
_LONGEST_S = 0.3  # for one kind: ten thousand leaves take a while with torch
_TIMEOUT_S = 3  # torch's workers say nothing of what they cannot send

Make = Callable[[], object]


def _records(_: Options) -> Iterator[dict]:
    """Yield a row for each kind; it is right if ours delivers it as torch does, or better."""
    warnings.simplefilter("ignore")
    table = _table()
    for name, make in {**table.NATIVE, **table.PICKLED}.items():
        theirs, failure, _ = _delivered(table, LOADERS["torch"], make)
        ours, missing, loader = _delivered(table, LOADERS["ours"], make)
        verdict, way = "MISSING", "-"
        if loader:
            way = "pickled" if loader.stats().pickled_batches else "native"
            loader.close()
            is_better = name in table.BETTER and _equal(make(), ours)
            is_equal = not failure and _equal(theirs, ours)
            verdict = "equal" if is_equal else "better" if is_better else "DIFFERENT"
        yield {
            "kind": name,
            "torch": failure or _outline(theirs),
            "ours": missing or _outline(ours),
            "verdict": verdict,
            "way": way,
            "correct": verdict in ("equal", "better"),
        }


def timed(loader: str) -> dict:
    """Return the time of each kind, or why it has none, with one worker."""
    kind, table = LOADERS[loader], _table()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # what torch cannot send
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # torch needs two for each tensor
    makes = {**table.NATIVE, **table.PICKLED}
    return {"kinds": {name: _timed(kind, name, make) for name, make in makes.items()}}


def _table():
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    from tests.torch import test_kinds  # needs pytest and hypothesis, as the tests do

    return test_kinds


def _delivered(table, kind: type, make: Make) -> tuple:
    """Return what a loader delivers, the name of the error if it fails, and the loader."""
    try:
        loader = table.loader_of(kind, {"": make})
        (batch,) = loader
    except Exception as error:  # any error is the row's content
        return None, type(error).__name__, None
    return batch, None, loader


def _timed(kind: type, name: str, make: Make) -> dict:
    load = wholes.batches(_BATCHES, lambda _: make())
    try:
        with closing(
            kind(load.dataset, num_workers=1, timeout=_TIMEOUT_S, **load.arguments)
        ) as loader:
            drawn = iter(loader)
            first = next(drawn)
            arrived = [time.perf_counter()]
            while len(arrived) < 2 or (
                len(arrived) < _BATCHES and arrived[-1] - arrived[0] < _LONGEST_S
            ):
                next(drawn)
                arrived.append(time.perf_counter())
    except Exception as error:  # any error is the record's content
        return {"mistake": f"{type(error).__name__}: {error}"}
    if not _is_right(make, first):
        return {"mistake": "what arrives is not what was made"}
    stretch = min(_STRETCH, len(arrived) - 1)
    pairs = zip(arrived, arrived[stretch:], strict=False)
    return {"ms": min(end - start for start, end in pairs) / stretch * 1e3}


def _is_right(make: Make, batch: object) -> bool:
    if _equal(make(), batch):
        return True
    # A pickle, which is what torch sends, turns an array's bytes to the machine's order.
    pickled = pickle.loads(pickle.dumps(make())) if isinstance(batch, numpy.ndarray) else None
    return pickled is not None and _equal(pickled, batch)


def _equal(one, other) -> bool:
    from tests.helpers.leaves.parts import are_same  # found as the table is

    return are_same(one, other)


def _outline(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value.dtype}".replace("torch.", "")
    return f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip().replace("|", "/")


QUESTION = Question(_records)
