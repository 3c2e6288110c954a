"""Makes a case that fails smaller: what is left of it is what it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from tests.lives.case import Case, Data

_SURE, _UNSURE = 2, 6  # which process runs first is chance, so a smaller case may fail now and then


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """
    Try smaller and smaller cases.

    Args:
        fails: Lives a case, and returns True if it fails in the same way.
        seconds: How long to try.
    """
    ends_at = time.monotonic() + seconds
    times = _SURE if all(fails(case) for _ in range(_SURE)) else _UNSURE
    position = in_vain = 0
    while (smaller := [*_smaller(case)])[in_vain:] and time.monotonic() < ends_at:
        # On from the same place: what comes before it was needed a moment ago.
        position %= len(smaller)
        if any(fails(smaller[position]) for _ in range(times)):
            case, in_vain = smaller[position], 0
        else:
            position, in_vain = position + 1, in_vain + 1
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases that are simpler in one thing, those first that take away most."""
    if len(case.events) > 1:
        yield replace(case, events=())
    if len(case.ours) > 1:
        yield replace(case, ours={})
    for number in range(len(case.events)):
        yield replace(case, events=case.events[:number] + case.events[number + 1 :])
    for name in ("ours", "torch"):
        given = getattr(case, name)
        for argument in given:
            if argument not in ("num_workers", "batch_size"):
                rest = {key: value for key, value in given.items() if key != argument}
                yield replace(case, **{name: rest})
    if case.epochs > 1:
        yield replace(case, epochs=case.epochs - 1)
    if case.sampler != "sequential":
        yield replace(case, sampler="sequential")
    for field in fields(Data):
        if getattr(case.data, field.name) != field.default and field.name != "samples":
            yield replace(case, data=replace(case.data, **{field.name: field.default}))
    for samples in (case.data.samples // 2, case.data.samples - 1):
        if 0 < samples < case.data.samples:
            yield replace(case, data=replace(case.data, samples=samples))
    if case.workers > 1:
        yield replace(case, torch={**case.torch, "num_workers": case.workers - 1})
    for number, event in enumerate(case.events):
        for name in ("number", "batch", "epoch"):
            if getattr(event, name) > 0:
                less = replace(event, **{name: getattr(event, name) - 1})
                yield replace(
                    case, events=(*case.events[:number], less, *case.events[number + 1 :])
                )
    if case.seed:
        yield replace(case, seed=0)
