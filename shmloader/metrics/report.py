"""What limits a loop, and what to change: a verdict on an epoch's record and its batches' times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shmloader.metrics.advice import advice_for
from shmloader.metrics.case import Case, Setting
from shmloader.metrics.causes import FREE, cause_of
from shmloader.metrics.record import Epoch
from shmloader.metrics.timeline import Timeline
from shmloader.metrics.words import duration, percent

FEWEST_BATCHES = 8  # to judge by


@dataclass(frozen=True)
class Report:
    """
    What limits a loop. `str()` says it to people.

    Attributes:
        cause: "fetching", "collating", "transport", "step", "held", "sample", "worker", "memory" or
            "cpu"; None if it cannot be told yet.
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
    """
    Judge the last epoch.

    Args:
        epoch: Its record; None if none has begun with workers.
        timeline: Its batches, as far as the log has them.
        setting: What it was run with.
    """
    if epoch is None or timeline is None or setting is None:
        return Report(None, lines=("nothing to report: no epoch was run with workers",))
    if not is_enough(timeline, setting):
        line = f"nothing to report yet: {len(timeline)} batches of epoch {epoch.number} are too few"
        return Report(None, lines=(line,))
    case = Case(epoch, _steady(timeline, setting), setting)
    cause, line = cause_of(case)
    advice, lines = advice_for(case, cause)
    start = _start_of(case) or _whole_of(case, len(timeline))
    return Report(cause, advice, case.facts, (line, *lines, *start))


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
        f"replaced {times} times as it grew{limit}: look for what the dataset keeps"
        for worker, (times, grown, batches) in sorted(growth.items())
    ]


def _whole_of(case: Case, seen: int) -> list[str]:
    """Say what waiting there was with the start of the epoch, where that changes the picture."""
    epoch = case.epoch
    both_s = epoch.next.total_s + epoch.step.total_s
    if not epoch.is_over or epoch.first_s is None or seen < epoch.batches or both_s <= 0:
        return []
    share = epoch.next.total_s / both_s
    if share - case.wait_share < FREE:
        return []
    return [
        f"in the whole epoch it waited {percent(share)}: the first batch came after "
        f"{duration(epoch.first_s)} of {duration(epoch.wall_s)}"
    ]


def is_enough(timeline: Timeline, setting: Setting) -> bool:
    """Returns True if an epoch can be judged by these batches."""
    return len(_steady(timeline, setting)) >= FEWEST_BATCHES


def _steady(timeline: Timeline, setting: Setting) -> Timeline:
    """Leave out the batches for which workers were started."""
    ahead = setting.workers * setting.prefetch_factor
    return timeline.after(min(ahead, len(timeline) // 4))


def _start_of(case: Case) -> list[str]:
    """Say that starting workers costs much of each epoch, if it does."""
    epoch = case.epoch
    if case.setting.persistent or epoch.first_s is None or not epoch.is_over:
        return []
    late_s = epoch.first_s - float(case.making.mean())
    if late_s < 0.2 * epoch.wall_s or late_s < 0.05:
        return []
    return [
        f"the first batch of the epoch came after {duration(epoch.first_s)} of "
        f"{duration(epoch.wall_s)}: persistent_workers=True keeps the workers for the next one"
    ]
