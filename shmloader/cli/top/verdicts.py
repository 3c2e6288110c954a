"""What limits a loader that runs, in a line."""

import os
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from shmloader.advice.report import Report, report_on, workers_lines
from shmloader.cli.attach.process_facts import lives, process
from shmloader.cli.attach.segments import layout
from shmloader.processes import scheduling
from shmloader.stats import Epoch, WorkersChange, WorkerStats
from shmloader.stats.records import Spill
from shmloader.stats.setting import in_use
from shmloader.stats.timeline import Timeline, timeline_over
from shmloader.stats.words import duration
from shmloader.views.live import LiveLoader, LiveWorker

_STALL_S = 1.0  # a shorter wait is seen as one of many

_REASONS = {reason.number: reason.label for reason in Spill}  # as the log has them


def verdict(loader: LiveLoader) -> str | None:
    """
    Say what limits a loader and what to change; None if that is not known.

    While a worker hangs no option helps, so none is advised.
    """
    stall = _stall(loader)
    if stall is not None or any(worker.hangs for worker in loader.workers):
        return stall
    report = report_of(loader)
    return "; ".join(report.lines) if report is not None and report.cause else None


def last_change(loader: LiveLoader) -> str | None:
    """Say how many workers there are, since when, and why; None if their number stays."""
    setting = loader.plate.setting
    numbers: Any = setting.changed if setting is not None else None
    if not numbers or not all(isinstance(number, (int, float)) for number in numbers):
        return None
    try:
        change = WorkersChange(*numbers)
        return workers_lines([replace(change, waited_since=loader.pace.waiting)])[0]
    except (TypeError, ValueError, OverflowError):  # it is read from another process
        return None


def _stall(loader: LiveLoader) -> str | None:
    """
    Say what the trainer waits for, if that takes longer than anything before.

    A report knows only batches that have come, and may call a loop fast that has come to a halt.
    """
    if loader.trainer != "waiting" or loader.since_s is None or loader.since_s < _STALL_S:
        return None
    records = loader.records[loader.records["epoch"] == loader.epoch]
    waits_ns = records["returned_ns"].astype(float) - records["asked_ns"].astype(float)
    if len(waits_ns) and loader.since_s < 2 * float(waits_ns.max()) / 1e9:
        return None
    awaited = "the program has waited {} for the next result"
    if loader.epoch != 0:  # as a pool's is
        awaited = "the training loop has waited {} for the next batch"
    text = awaited.format(duration(loader.since_s))
    if len(waits_ns):
        text += f", and {duration(float(waits_ns.max()) / 1e9)} at most for one before"
    making = [worker for worker in loader.workers if worker.ticket is not None]
    if not making:
        there = [worker.pid for worker in loader.workers if worker.state != "absent"]
        started = sum(pid is not None and lives(pid) for pid in there)
        if started < len(loader.workers):
            return f"{text}; {started} of {len(loader.workers)} workers have started"
        return f"{text}; no worker has it in hand"
    oldest = min(making, key=lambda worker: worker.ticket or 0)
    return f"{text}; worker {oldest.worker} has it in hand ({oldest.state})"


def report_of(loader: LiveLoader) -> Report | None:
    """Judge the epoch that runs, as the trainer's own report would, as far as it shows outside."""
    view, setting = loader.view, loader.plate.setting
    if view is None or setting is None:
        return None
    timeline = timeline_over(loader.records, layout(), view["epoch"])
    epoch = _epoch_of(loader, view, timeline)
    return report_on(epoch, timeline, setting.grown_to(in_use(loader.slots)))


def _epoch_of(loader: LiveLoader, view: dict[str, Any], timeline: Timeline) -> Epoch:
    records = loader.records[loader.records["epoch"] == view["epoch"]]
    reasons = [int(each) for each in records["spill"]]
    spills = Counter(_REASONS[each] for each in reasons if each in _REASONS)
    begun = Epoch.of(view, layout().no_number, is_over=False, spills=dict(spills))
    if 0 < len(timeline) < begun.batches:
        # If an epoch's begin is not in the log, the batches that are in it are all that counts.
        span_s = float(timeline.returned[-1])
        begun = replace(begun, batches=len(timeline), wall_s=span_s, first_s=None)
    cpu_s, delayed_s = _scheduled_s(loader.plate.owner_pid, begun.wall_s)
    workers = tuple(_worker_of(worker, timeline, begun.wall_s) for worker in loader.workers)
    return replace(begun, workers=workers, trainer_cpu_s=cpu_s, trainer_delayed_s=delayed_s)


def _worker_of(worker: LiveWorker, timeline: Timeline, span_s: float) -> WorkerStats:
    """What a worker did in the batches of the log; how it was scheduled, since it began."""
    mine = timeline.worker == worker.worker
    cpu_s, delayed_s = _scheduled_s(worker.pid, span_s)
    return WorkerStats(
        fetching_s=float(timeline.fetching[mine].sum()),
        collating_s=float(timeline.collating[mine].sum()),
        cpu_s=cpu_s,
        delayed_s=delayed_s,
    )


def _scheduled_s(pid: int | None, span_s: float) -> tuple[float, float]:
    """Seconds of a span that a process ran, and lacked a core, by the shares of its whole life."""
    running, ready = scheduling.scheduled_ns(pid) if pid else (0, 0)
    if not pid or not running:
        return 0.0, 0.0
    try:
        begun_s = process(pid).start / os.sysconf("SC_CLK_TCK")
    except OSError:  # it has ended since
        return 0.0, 0.0
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - begun_s
    scale = min(1.0, span_s / max(age_s, 1e-9)) / 1e9
    return scale * running, scale * ready
