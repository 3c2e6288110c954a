"""What of a case is promised, and whether a life has had it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.lives.case import STATEFUL, Case
from tests.lives.life import Trace

_INDEX, _TORCH, _RANDOM, _NUMPY, _RNG, _COUNT, _WHOLE = range(7)


def promised(case: Case) -> set[int]:
    """Returns which numbers of a row are defined by the case (docs/draws.md, resume.md)."""
    columns = {_INDEX, _WHOLE}
    ours = case.ours
    has_cycle = ours.get("assignment", "cycle") == "cycle" and "max_workers" not in ours
    by_batch = ours.get("seed_by") == "batch"
    in_order = case.torch.get("in_order", True)
    is_ordered = in_order and has_cycle and not ours.get("fetch_threads", 0)
    is_resumed = case.has("resume") and case.workers > 0
    goes_on = (not is_resumed or bool(ours.get("resumable"))) and not _is_left_to_chance(case)
    if by_batch:
        columns.add(_RNG)
        if not ours.get("fetch_threads", 0) and (in_order or not case.is_iterable):
            columns |= {_TORCH, _RANDOM, _NUMPY}
    elif is_ordered and goes_on:
        columns |= {_TORCH, _RANDOM, _NUMPY}
    if is_ordered and goes_on and _keeps_count(case):
        columns.add(_COUNT)
    if case.data.kind == "counting" and not _counts_epochs(case, is_ordered, goes_on):
        columns.discard(_INDEX)
        columns.discard(_WHOLE)
    return columns


def _is_left_to_chance(case: Case) -> bool:
    """
    Returns True if what workers fetch of an epoch that is left depends on when another one ends.

    torch gives that one's requests to the others as soon as it hears of its end, which may be
    before or after the loop leaves: its own loader, 25 times the same life, had two outcomes. With
    workers that live on, the next epoch shows it.
    """
    leaves = case.has("break", "again")
    return case.is_iterable and case.is_persistent and case.workers > 1 and leaves


def _keeps_count(case: Case) -> bool:
    """Returns True if what a dataset counts is restored where that is needed."""
    if not case.workers:
        return False
    is_replaced = case.has("kill", "stop", "resume") or "worker_bytes" in case.ours
    return case.data.kind in STATEFUL or not is_replaced


def _counts_epochs(case: Case, is_ordered: bool, goes_on: bool) -> bool:
    """Returns True if a dataset that counts its epochs knows the right one."""
    if not case.workers:
        return not case.has("resume")
    return is_ordered and goes_on


def compare(case: Case, expected: Trace, actual: Trace) -> str | None:
    """Returns how two lives differ in what is promised; None if they do not."""
    columns = sorted(promised(case))
    in_order = case.torch.get("in_order", True)
    goes_on_by_chance = case.data.kind == "counting" and _is_left_to_chance(case)
    for epoch, (ours, theirs) in enumerate(zip(actual.epochs, expected.epochs, strict=True)):
        if goes_on_by_chance and any(expected.left[:epoch]):
            break  # it goes on where its workers have come to: how many batches is open too
        is_left = expected.left[epoch]
        found = _difference(_masked(theirs, columns), _masked(ours, columns), in_order, is_left)
        if found:
            return f"epoch {epoch}, {found}"
    if not in_order:
        return None
    for number, (ours, theirs) in enumerate(zip(actual.others, expected.others, strict=True)):
        found = _difference(_masked(theirs, columns), _masked(ours, columns), True, False)
        if found:
            return f"second iterator {number}, {found}"
    return None


def _masked(batches: list[Any], columns: list[int]) -> list[Any]:
    return [
        batch
        if batch[:1] == ("error",)
        else tuple(tuple(row[column] for column in columns) for row in batch)
        for batch in batches
    ]


def _difference(expected: list[Any], actual: list[Any], in_order: bool, is_left: bool) -> str:
    if not in_order and not is_left:
        missing = Counter(expected) - Counter(actual)
        surplus = Counter(actual) - Counter(expected)
        return f"batches {[*surplus]} instead of {[*missing]}" if missing or surplus else ""
    if in_order:
        for number, (ours, theirs) in enumerate(zip(actual, expected, strict=False)):
            if ours != theirs:
                return f"batch {number}: {ours} instead of {theirs}"
    if len(actual) != len(expected):
        return f"{len(actual)} batches instead of {len(expected)}"
    return ""
