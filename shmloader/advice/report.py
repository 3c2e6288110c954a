"""What limits a loop, and what to change: a verdict on an epoch's record and its batches' times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from shmloader.advice.case import Case
from shmloader.advice.causes import judge
from shmloader.advice.changes import other_programs
from shmloader.stats.records import Epoch, WorkersChange
from shmloader.stats.setting import SERVER, Setting
from shmloader.stats.timeline import Timeline
from shmloader.stats.words import duration, percent, times

FEWEST_BATCHES = 10  # to judge by
_NO_STEP_S = 1e-4  # nothing trains in less
_MOSTLY = 0.5  # of the epoch's time
_LATE, _LATE_S = 0.1, 0.05  # a first batch that is later, as a part of the epoch, is worth a line
_VERY_LATE = 0.3  # of the epoch: worth one however short that is

_IMPORTS = {
    "spawn": (
        '; each worker imports its modules itself: preload=("torch",) imports once for all of them'
    ),
    "forkserver": (
        "; each worker imports its modules itself: without preload=() one process imports them "
        "for all"
    ),
    SERVER: '; preload=("__main__",) imports your script once, and not in each worker',
}

_PERSISTENT = "persistent_workers=True keeps the workers for the next epoch"
_NO_EPOCH = (
    "nothing to report: iterate the loader with workers first; no epoch has run with workers"
)


@dataclass(frozen=True)
class Report:
    """
    What limits a loop; `str()` gives the report as text.

    Attributes:
        cause: "fetching", "collating", "transport", "step", "held", "sample", "worker", "memory" or
            "cpu"; None if the run was too short to judge.
        advice: Options to set, by name; empty if none would help.
        facts: The numbers that the report follows from: names in `_s` are seconds, in `_share`
            parts of 1.
        lines: The lines of the text.
    """

    cause: str | None
    advice: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a few lines: what limits the loop, and what to change."""
        return "\n".join(self.lines)


def report_on(epoch: Epoch | None, timeline: Timeline | None, setting: Setting | None) -> Report:
    """Judge an epoch by its record, its batches as far as the log has them, and its setting."""
    if epoch is None or timeline is None or setting is None:
        return Report(None, lines=(_NO_EPOCH,))
    reason, start = why_too_short(epoch, timeline, setting), _start_lines(epoch, timeline, setting)
    if start == [reason]:
        start = []
    if reason is not None:
        return Report(None, lines=(f"too short to judge: {reason}", *start))
    report = judged(case_of(epoch, timeline, setting))
    return replace(report, lines=(*report.lines, *start))


def _start_lines(epoch: Epoch, timeline: Timeline, setting: Setting) -> list[str]:
    """Say that an epoch's begin took much of it, as one of many short epochs' does too."""
    made_s = float(numpy.median(timeline.making + timeline.blocked)) if len(timeline) else 0.0
    late_s = (epoch.first_s or 0.0) - made_s
    least_s = min(_VERY_LATE * epoch.wall_s, max(_LATE * epoch.wall_s, _LATE_S))
    return [_late_start(epoch, setting)] if epoch.is_over and late_s >= least_s else []


def case_of(epoch: Epoch, timeline: Timeline, setting: Setting) -> Case:
    """Take an epoch without the batches for which workers were started."""
    return Case(epoch, timeline.after(min(setting.ahead, len(timeline) // 4)), setting)


def judged(case: Case) -> Report:
    """Say what limits a loop, and what to change, whatever its start was."""
    cause, words, (advice, lines) = judge(case)
    line = f"{cause}: the training loop waits {percent(case.wait_share)} of the time{words}"
    return Report(cause, advice, case.facts, (line, *lines, *other_programs(case)))


def why_too_short(epoch: Epoch, timeline: Timeline, setting: Setting) -> str | None:
    """Say why an epoch cannot be judged; None if it can."""
    fewest = max(FEWEST_BATCHES, 2 * setting.ahead)
    if epoch.batches < fewest or len(timeline) < FEWEST_BATCHES:
        seen = min(epoch.batches, len(timeline))
        had = f"epoch {epoch.number} has had {seen}"
        return f"iterate at least {fewest} batches of one epoch first; {had}"
    step_s = float(numpy.median(timeline.step))
    if step_s < _NO_STEP_S:
        return (
            "give the loop a training step first; it has no step, asks for the next batch "
            f"{duration(step_s)} after each, and so waits however fast the data is"
        )
    if epoch.first_s is not None and epoch.first_s > _MOSTLY * epoch.wall_s:
        return _late_start(epoch, setting)
    return None


def growth_lines(left: Mapping[int, int], worker_bytes: int | None) -> list[str]:
    """Say which workers were replaced because they grew, by worker: how often."""
    limit = "" if worker_bytes is None else f" beyond worker_bytes={worker_bytes}"
    return [
        f"worker {worker} was replaced {count} times because it grew{limit}: find out what the "
        "dataset retains"
        for worker, count in sorted(left.items())
    ]


def workers_lines(changes: Sequence[WorkersChange]) -> list[str]:
    """Say how many workers there are, since when, and why, by the last changes of that."""
    if not changes:
        return []
    last = changes[-1]
    waits = last.waited_since
    now = "" if waits is None else f", {percent(waits)} with {last.after}"
    return [
        f"{times(last.after, 'worker')} since batch {last.batch} of epoch {last.epoch}: the loop "
        f"waited {percent(last.waited_share)} of the time with {last.before}{now}"
    ]


def locked_lines(locked_bytes: int) -> list[str]:
    """Say how much of the slots is page-locked, which the kernel can neither swap nor move."""
    if not locked_bytes:
        return []
    return [f"{locked_bytes / 1e6:.1f} MB of the slots are page-locked for the device"]


def changed_lines(changed: Sequence[tuple[str, str, str]]) -> list[str]:
    """Say what of the dataset has changed since persistent workers took it: name, then, now."""
    if not changed:
        return []
    names = ", ".join(f"{name} (it was {then}, and is {now})" for name, then, now in changed)
    return [
        f"persistent workers were started before the dataset's {names} changed, and do not see it: "
        "call loader.close() before the next iter(), or omit persistent_workers"
    ]


def _late_start(epoch: Epoch, setting: Setting) -> str:
    first, wall = duration(epoch.first_s or 0.0), duration(epoch.wall_s)
    advice = "" if setting.persistent else f": {_PERSISTENT}"
    advice += _IMPORTS.get(setting.start, "")
    return f"the first batch of the epoch came after {first} of {wall}{advice}"
