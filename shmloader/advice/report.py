"""What limits a loop, and what to change: a verdict on an epoch's record and its batches' times."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from shmloader.advice.case import Case
from shmloader.advice.causes import judge
from shmloader.stats.record import Epoch
from shmloader.stats.setting import SERVER, Setting
from shmloader.stats.timeline import Timeline
from shmloader.stats.words import duration, percent

FEWEST_BATCHES = 10  # to judge by
_NO_STEP_S = 1e-4  # nothing trains in less
_MOSTLY = 0.5  # of the epoch's time
_LATE, _LATE_S = 0.1, 0.05  # a first batch that is later, as a part of the epoch, is worth a line

_IMPORTS = {
    "spawn": '; each worker imports by itself: preload=("torch",) imports once for all of them',
    "forkserver": "; each worker imports by itself: without preload=() one process does for all",
    SERVER: '; preload=("__main__",) imports your script once, and not in each worker',
}


@dataclass(frozen=True)
class Report:
    """
    What limits a loop. `str()` says it to people.

    Attributes:
        cause: "fetching", "collating", "transport", "step", "held", "sample", "worker", "memory" or
            "cpu"; None if the run was too short to judge.
        advice: Options to set, by name; empty if none would help.
        facts: The numbers behind it: seconds by `_s`, parts of one by `_share`.
        lines: What `str()` shows.
    """

    cause: str | None
    advice: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say in a few lines what limits the loop, and what to change."""
        return "\n".join(self.lines)


def report_on(epoch: Epoch | None, timeline: Timeline | None, setting: Setting | None) -> Report:
    """Judge an epoch by its record, its batches as far as the log has them, and its setting."""
    if epoch is None or timeline is None or setting is None:
        return Report(None, lines=("nothing to report: no epoch was run with workers",))
    reason = why_too_short(epoch, timeline, setting)
    if reason is not None:
        return Report(None, lines=(f"too short to judge: {reason}",))
    case = case_of(epoch, timeline, setting)
    report = judged(case)
    late_s = (epoch.first_s or 0.0) - float(case.making.mean())
    if not epoch.is_over or late_s < max(_LATE * epoch.wall_s, _LATE_S):
        return report
    return replace(report, lines=(*report.lines, _late_start(epoch, setting)))


def case_of(epoch: Epoch, timeline: Timeline, setting: Setting) -> Case:
    """Take an epoch without the batches for which workers were started."""
    return Case(epoch, timeline.after(min(setting.ahead, len(timeline) // 4)), setting)


def judged(case: Case) -> Report:
    """Say what limits a loop, and what to change, whatever its start was."""
    cause, words, (advice, lines) = judge(case)
    line = f"{cause}: the trainer waits {percent(case.wait_share)} of the time{words}"
    return Report(cause, advice, case.facts, (line, *lines))


def why_too_short(epoch: Epoch, timeline: Timeline, setting: Setting) -> str | None:
    """Say why an epoch cannot be judged; None if it can."""
    fewest = max(FEWEST_BATCHES, 2 * setting.ahead)
    if epoch.batches < fewest or len(timeline) < FEWEST_BATCHES:
        seen = min(epoch.batches, len(timeline))
        return f"epoch {epoch.number} has had {seen} batches, and it takes at least {fewest}"
    step_s = float(numpy.median(timeline.step))
    if step_s < _NO_STEP_S:
        return (
            f"the loop has no step, it asks for the next batch {duration(step_s)} after each, and "
            "waits whatever the data does: report on a loop that trains"
        )
    if epoch.first_s is not None and epoch.first_s > _MOSTLY * epoch.wall_s:
        return _late_start(epoch, setting)
    return None


def growth_lines(growth: Mapping[int, tuple[int, int, int]], worker_bytes: int | None) -> list[str]:
    """
    Say by how much workers grew that were replaced because of it.

    Args:
        growth: By worker: how often it was replaced, bytes that it grew, batches that it made.
        worker_bytes: The option, as it is now.
    """
    limit = "" if worker_bytes is None else f" beyond worker_bytes={worker_bytes}"
    return [
        f"worker {worker} grows by {grown / max(1, batches) / 1e6:.1f} MB per batch, and was "
        f"replaced {count} times as it grew{limit}: look for what the dataset keeps"
        for worker, (count, grown, batches) in sorted(growth.items())
    ]


def _late_start(epoch: Epoch, setting: Setting) -> str:
    first, wall = duration(epoch.first_s or 0.0), duration(epoch.wall_s)
    keep = "" if setting.persistent else ": persistent_workers=True keeps the workers for the next"
    keep += _IMPORTS.get(setting.start, "")
    return f"the first batch of the epoch came after {first} of {wall}{keep}"
