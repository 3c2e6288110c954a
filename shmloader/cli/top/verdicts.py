"""What limits a loader that runs, in a line."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shmloader.advice.report import Report, report_on
from shmloader.cli.attach.running import lives
from shmloader.cli.attach.segments import layout
from shmloader.processes import scheduling
from shmloader.stats import Epoch, Times, WorkerStats
from shmloader.stats.record import Spill
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
    text = f"the trainer has waited {duration(loader.since_s)} for the next batch"
    if len(waits_ns):
        text += f", and {duration(float(waits_ns.max()) / 1e9)} at most for one before"
    making = [worker for worker in loader.workers if worker.ticket is not None]
    if not making:
        started = sum(_has_started(worker) for worker in loader.workers)
        if started < len(loader.workers):
            return f"{text}; {started} of {len(loader.workers)} workers have started"
        return f"{text}; no worker has it in hand"
    oldest = min(making, key=lambda worker: worker.ticket or 0)
    return f"{text}; worker {oldest.worker} has it in hand ({oldest.state})"


def _has_started(worker: LiveWorker) -> bool:
    return worker.state != "absent" and worker.pid is not None and lives(worker.pid)


def report_of(loader: LiveLoader) -> Report | None:
    """Judge the epoch that runs, as the trainer's own report would, as far as it shows outside."""
    view, setting = loader.view, loader.plate.setting
    if view is None or loader.epoch is None or setting is None:
        return None
    timeline = timeline_over(loader.records, layout(), loader.epoch)
    epoch = _epoch_of(loader, view, timeline)
    return report_on(epoch, timeline, setting.grown_to(in_use(loader.slots)))


def _epoch_of(loader: LiveLoader, view: dict[str, Any], timeline: Timeline) -> Epoch:
    records = loader.records[loader.records["epoch"] == loader.epoch]
    reasons = [int(each) for each in records["spill"]]
    spills = Counter(_REASONS[each] for each in reasons if each in _REASONS)
    return Epoch.of(
        view,
        layout().no_number,
        is_over=False,
        next=Times(),
        step=Times(),
        workers=tuple(_worker_of(worker, timeline) for worker in loader.workers),
        spills=dict(spills),
        restarts=0,
        trainer_cpu_s=0.0,
        trainer_delayed_s=0.0,
    )


def _worker_of(worker: LiveWorker, timeline: Timeline) -> WorkerStats:
    """What a worker did in the batches of the log; how it was scheduled, since it began."""
    mine = timeline.worker == worker.worker
    busy_s = float(timeline.making[mine].sum())
    running, ready = scheduling.scheduled_ns(worker.pid) if worker.pid else (0, 0)
    # Shares of its whole life stand for those of the epoch.
    alive_s = (running + ready) / 1e9
    scale = min(1.0, busy_s / alive_s) if alive_s > 0 else 0.0
    return WorkerStats(
        fetching_s=float(timeline.fetching[mine].sum()),
        collating_s=float(timeline.collating[mine].sum()),
        cpu_s=scale * running / 1e9,
        delayed_s=scale * ready / 1e9,
    )
