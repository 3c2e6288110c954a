"""
Thirty-six kinds of batches that people have, with torch and with ours: their time, and each batch.

    python -m bench kinds
    python -m bench kinds --kind detection --kind pil --rounds 5

All batches of the first epoch are compared in every bit with what torch's loader delivers, or,
where that fails or loses something, with what was made. A row whose library is missing says so.
"""

import resource
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

from torch.utils.data import DataLoader

from bench.driver import in_turns, missing
from bench.loaders import opened
from bench.loads.kinds import KINDS
from bench.question import Options, Question, number, several
from tests.helpers.leaves.parts import are_same

WRONG = "DIFFERENT"
_TIMEOUT_S = 20  # torch's workers say nothing of what they cannot send
_ENOUGH_S = 5.0  # of an epoch


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each kind; it is right if all batches of ours were."""
    for name in options.kind or KINDS:
        kind = KINDS[name]
        lacking = missing(kind.needs)
        found = {} if lacking else measured(kind.load(), options.rounds)
        ours, theirs = found.get("ours", {}), found.get("torch", {})
        said = found.get("said", lacking)
        yield {
            "kind": name,
            "torch ms": theirs.get("ms"),
            "ours ms": ours.get("ms"),
            "times torch": found.get("times torch"),
            "torch CPU ms": theirs.get("cpu_ms"),
            "ours CPU ms": ours.get("cpu_ms"),
            "batches": said,
            "mistakes": {"ours": "its batches are not torch's"} if said == WRONG else {},
        }


def timed(loader: Any) -> dict[str, float]:
    """Time an epoch, or as much of it as comes in some seconds."""
    begin, cpu, count = time.perf_counter(), time.process_time(), 0
    for _ in loader:
        count += 1
        if time.perf_counter() - begin > _ENOUGH_S:
            break
    used_s, took_s = time.process_time() - cpu, time.perf_counter() - begin
    return {"ms": 1e3 * took_s / count, "cpu_ms": 1e3 * used_s / count}


def measured(
    load: dict[str, Any],
    rounds: int,
    measure: Callable[[Any], dict[str, float]] = timed,
    is_same: Callable[[Any, Any], bool] = are_same,
    **more: Any,
) -> dict[str, Any]:
    """
    Deliver a load by both loaders in turns, or by ours alone where torch's fails.

    Args:
        load: The arguments of both loaders.
        measure: Gives figures of a loader, of which the least count.
        is_same: Compares two batches.
        more: Arguments instead of two workers and some seconds.

    Returns:
        The figures of each loader; `said`, what a comparison says; and how much slower torch's is.
    """
    warnings.simplefilter("ignore")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # torch needs two for each tensor
    given = {"num_workers": 2, "persistent_workers": True, "timeout": _TIMEOUT_S, **load, **more}
    with opened("torch", **given) as theirs, opened("ours", **given) as ours:
        loaders, failures = {"torch": theirs, "ours": ours}, []
        said = _compared(DataLoader(**load), _until_it_fails(theirs, failures), ours, is_same)
        if failures:
            del loaders["torch"]
        runs = in_turns(loaders, rounds, lambda name: measure(loaders[name]))
    found = {
        name: {figure: min(run[figure] for run in own) for figure in own[0]}
        for name, own in runs.items()
    }
    times = None if failures else found["torch"]["ms"] / found["ours"]["ms"]
    said = said if said == WRONG else " ".join([said, *failures])
    return {**found, "said": said, "times torch": times}


def _compared(made: Any, torch: Any, ours: Any, is_same: Callable[[Any, Any], bool]) -> str:
    """Compare an epoch with torch's, and where that fails or loses something, with what is made."""
    said = "equal"
    for right, theirs, own in zip_longest(made, torch, ours):
        if not is_same(theirs, own):
            said = "better"
            if not is_same(right, own):
                return WRONG
    return said


def _until_it_fails(loader: Any, failures: list[str]) -> Iterator[Any]:
    try:
        yield from loader
    except Exception as error:  # any error is the row's content
        failures.append(f"(torch's: {type(error).__name__})")


QUESTION = Question(_records, {"kind": several(KINDS), "rounds": number(3)})
