"""
Thirty-six kinds of batches that people have, with torch and with ours: their time, and each batch.

    python -m bench kinds
    python -m bench kinds --kind detection --kind pil --rounds 5

Two workers; fetching costs nothing. Both loaders take turns, and the fastest epoch counts. All
batches of the first epoch are compared in every bit with what torch's loader delivers, or, where
that fails or loses something, with what was made. A row whose library is not installed says so.
"""

import resource
import time
import warnings
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from torch.utils.data import DataLoader

from bench.driver import in_turns, missing
from bench.loaders import opened
from bench.loads.kinds import KINDS, Kind
from bench.question import Options, Question, number, several
from tests.helpers.leaves.parts import are_same

_EQUAL, _WRONG = "equal", "WRONG"
_TIMEOUT_S = 20  # torch's workers say nothing of what they cannot send
_ENOUGH_S = 5.0  # of an epoch


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each kind; it is right if all batches of ours were."""
    for name in options.kind or KINDS:
        yield record(name, options.rounds)


def record(name: str, rounds: int) -> dict:
    """Measure a kind with both loaders."""
    lacking = missing(KINDS[name].needs)
    found, said = ({}, lacking) if lacking else _measured(KINDS[name], rounds)

    def least(loader: str, figure: str) -> float | None:
        return min((run[figure] for run in found.get(loader, ())), default=None)

    ours, theirs = least("ours", "ms"), least("torch", "ms")
    return {
        "kind": name,
        "torch ms": theirs,
        "ours ms": ours,
        "times torch": theirs and theirs / ours,
        "torch CPU ms": least("torch", "cpu_ms"),
        "ours CPU ms": least("ours", "cpu_ms"),
        "batches": said,
        "mistakes": {"ours": "its batches are not torch's"} if said == _WRONG else {},
    }


def _measured(kind: Kind, rounds: int) -> tuple[dict[str, list[dict]], str]:
    """Return the runs of each loader that delivers the kind, and what a comparison says."""
    warnings.simplefilter("ignore")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # torch needs two for each tensor
    load = kind.load()
    more = {"num_workers": 2, "persistent_workers": True, "timeout": _TIMEOUT_S}
    with opened("torch", **load, **more) as theirs, opened("ours", **load, **more) as ours:
        loaders = {"torch": theirs, "ours": ours}
        said, failures = _compared(load, **loaders)
        if failures:
            del loaders["torch"]
        return in_turns(loaders, rounds, lambda name: _timed(loaders[name])), said


def _compared(load: dict[str, Any], torch: Any, ours: Any) -> tuple[str, list[str]]:
    """Compare an epoch. Returns what came of it, and why torch's loader failed, if it did."""
    failures: list[str] = []
    made = DataLoader(**load)
    said = _EQUAL
    for right, theirs, own in zip_longest(made, _until_it_fails(torch, failures), ours):
        if failures or not are_same(theirs, own):
            said = "better"
            if not are_same(right, own):
                return _WRONG, failures
    return " ".join([said, *failures]), failures


def _until_it_fails(loader: Any, failures: list[str]) -> Iterator[Any]:
    try:
        yield from loader
    except Exception as error:  # any error is the row's content
        failures.append(f"(torch's: {type(error).__name__})")


def _timed(loader: Any) -> dict[str, float]:
    """Time an epoch, or as much of it as comes in some seconds."""
    begin, cpu, count = time.perf_counter(), time.process_time(), 0
    for _ in loader:
        count += 1
        if time.perf_counter() - begin > _ENOUGH_S:
            break
    used_s, took_s = time.process_time() - cpu, time.perf_counter() - begin
    return {"ms": 1e3 * took_s / count, "cpu_ms": 1e3 * used_s / count}


QUESTION = Question(_records, {"kind": several(KINDS), "rounds": number(3)})
