"""What one iterator does in an epoch: for the loader's history, viewers, and the logger."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from shmloader import log
from shmloader.memory.segment_pool import LAYOUT, SegmentPool, workers_of
from shmloader.processes import scheduling
from shmloader.stats import Epoch, Times, WorkerStats
from shmloader.trainer.epoch import CurrentEpoch, Start
from shmloader.transport.transport import Transport


class Tally:
    """Counts an epoch by what its ledger and its workers had counted before it."""

    def __init__(
        self, pool: SegmentPool, transport: Transport, pids: Callable[[], list[int]]
    ) -> None:
        self._pool = pool
        self._ledger, self._notes = transport.ledger, transport.notes
        self._spills = transport.budget.spills
        self._pids = pids
        self._runs = False
        self._number = 0
        self._start: Start

    def begin(self, epoch: CurrentEpoch) -> None:
        """Begin an epoch, and end one that the user broke off."""
        self.end()
        self._start = start = epoch.start
        self._before = self._ledger.sums()
        self._clocks_before = workers_of(self._notes)
        self._scheduled_before = {pid: scheduling.scheduled_ns(pid) for pid in self._pids()}
        self._spills_before = Counter(self._spills)
        self._copying_before = Counter(self._pool.copying)
        self._number = self._pool.history.begin(self)
        resumed_at = epoch.delivered.count
        self._notes.begin_epoch(self._number, epoch.length, resumed_at, start.at_ns)
        self._runs = True

    def end(self) -> None:
        """Take the epoch into the history, and tell what it had, unless that was done."""
        epoch = self.now(is_over=True)
        if epoch is None:
            return
        self._notes.end_epoch()
        self._pool.history.end(epoch)
        self._runs = False  # now that it is in the history, for who looks on another thread
        log.tell(
            "%s: epoch ended: %d batches of %.1f MB in all, %.3f s waited, %d copied out, %d "
            "restarts; %.1f MB resident",
            self._pool.name,
            epoch.batches,
            epoch.bytes / 1e6,
            epoch.wait_s,
            sum(epoch.spills.values()),
            epoch.restarts,
            self._ledger.resident_bytes / 1e6,
        )

    over = closed = end

    def now(self, is_over: bool = False) -> Epoch | None:
        """What the epoch has done until now; None if it has ended."""
        if not self._runs:
            return None
        number = self._number
        view = LAYOUT.values("trainer_view", self._notes.view())
        next_times, step_times = (Times.of(*found) for found in self._notes.durations())
        restarts = self._ledger.sums()["restarts"] - self._before["restarts"]
        if number != self._number:  # it ended while this thread looked
            return None
        return Epoch.of(
            view,
            LAYOUT.no_number,
            is_over=is_over,
            next=next_times,
            step=step_times,
            workers=self._workers(),
            spills=dict(self._spills - self._spills_before),
            restarts=restarts,
            trainer_cpu_s=time.process_time() - self._start.cpu_s,
            trainer_delayed_s=self._trainer_delayed_s(),
            copy_s=self._copying_s("copy_ns"),
            lock_s=self._copying_s("lock_ns"),
        )

    def _copying_s(self, name: str) -> float:
        return (self._pool.copying[name] - self._copying_before[name]) / 1e9

    def _trainer_delayed_s(self) -> float:
        _, delayed_ns = scheduling.scheduled_ns(self._start.thread)
        return max(0, delayed_ns - self._start.delayed_ns) / 1e9

    def _workers(self) -> tuple[WorkerStats, ...]:
        """What each worker did in this epoch; a replacement has begun in it."""
        clocks = zip(workers_of(self._notes), self._clocks_before, strict=True)
        done = [now - then for now, then in clocks]
        for worker, pid in enumerate(self._pids()):
            running, ready = scheduling.scheduled_ns(pid)
            running_before, ready_before = self._scheduled_before.get(pid, (0, 0))
            done[worker] = replace(
                done[worker],
                cpu_s=max(0, running - running_before) / 1e9,
                delayed_s=max(0, ready - ready_before) / 1e9,
            )
        return tuple(done)
