"""Make a case that fails smaller: fewer processes, answers, deaths and changes of turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.case import LATE, Case


def shrink(case: Case, events: int, fails: Callable[[Case], bool], seconds: float) -> Case:
    """
    Find a smaller case that fails too, within so many seconds.

    Args:
        events: How many the run of the case had.
        fails: Plays a case; returns True if it fails in the same way.
    """
    ends_s = time.monotonic() + seconds

    def is_smaller(other: Case) -> bool:
        return time.monotonic() < ends_s and fails(other)

    goes_on = True
    while goes_on and time.monotonic() < ends_s:
        goes_on = False
        for other in simpler(case):
            if is_smaller(other):
                case, goes_on = other, True
                break
    return _narrowed(case, events, is_smaller)


def simpler(case: Case) -> Iterator[Case]:
    """Make cases with less in them, the largest steps first."""
    for answers in (case.answers // 4, case.answers // 2, case.answers - 1):
        if 0 < answers < case.answers:
            yield replace(case, answers=answers)
    if case.workers > 1:
        yield replace(case, workers=case.workers - 1)
    for place in range(len(case.deaths)):
        yield replace(case, deaths=case.deaths[:place] + case.deaths[place + 1 :])
    for place in range(len(case.interrupts)):
        yield replace(case, interrupts=case.interrupts[:place] + case.interrupts[place + 1 :])
    for name, usual in (
        *(
            ("lives", 1),
            ("reacts", False),
            ("strikes", 0),
            ("scribbles", False),
            ("anew", False),
            ("forges_at", 0),
        ),
        ("dies_at", ("", 0)),
        *(("forks", 0), ("forgets", 0), ("abandons", 0), ("tells", 0), ("leaves_after", 0)),
        *(("fire_one_in", 0), ("slow", 0), ("has_views", False), ("has_lines", False)),
        *(("is_guarded", False), ("grows", False), ("keeps", 0), ("length", 1), ("ahead", 1)),
    ):
        if getattr(case, name) != usual:
            yield replace(case, **{name: usual})
    if case.switch_one_in < 64:
        yield replace(case, switch_one_in=case.switch_one_in * 4)


def _narrowed(case: Case, events: int, fails: Callable[[Case], bool]) -> Case:
    """Give turns away unasked between two events only, as few as it takes."""
    first, last = case.switches[0], min(case.switches[1], events)
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if fails(replace(case, switches=(first, middle))):
            high = middle
        else:
            low = middle + 1
    if high < last or fails(replace(case, switches=(first, high))):
        case = replace(case, switches=(first, high))
    low, high = first, case.switches[1]
    while low < high < LATE:
        middle = (low + high + 1) // 2
        if fails(replace(case, switches=(middle, case.switches[1]))):
            low = middle
        else:
            high = middle - 1
    return replace(case, switches=(low, case.switches[1])) if low > first else case
