"""The part of an iterator that has its workers follow the controller."""

import time
from typing import Any

from shmloader.autoscaling.controller import Controller, Limits, Sums, Window
from shmloader.autoscaling.windows import Windows, cores_for, largest_bytes, workers_with_memory
from shmloader.memory.segment_pool import SegmentPool
from shmloader.stats import WorkersChange
from shmloader.transport.transport import Transport
from shmloader.transport.workers import Workers

_LOOK_S = 0.05  # between two looks whether a window is over


class Learnt:
    """
    What one loader has learnt, over all of its iterators.

    Attributes:
        controller: Decides.
        window: What the open window has had in iterators that have ended.
        each_bytes: Of a worker; 0: not measured.
        user: The autoscaler that asked last.
    """

    def __init__(self) -> None:
        self.controller = Controller()
        self.window = Sums()
        self.each_bytes = 0
        self.user: Autoscaler | None = None


class Autoscaler:
    """Looks at the workers between batches, and adds some or lets some go."""

    def __init__(
        self, transport: Transport, processes: Workers, pool: SegmentPool, least: int, most: int
    ) -> None:
        """
        Take over the workers of an iterator, which have not started.

        Args:
            pool: Keeps what is learnt for the loader's next iterator.
            least, most: How many workers there may be.
        """
        self._transport, self._processes, self._pool = transport, processes, pool
        if pool.learnt is None:
            pool.learnt = Learnt()
        self._learnt: Learnt = pool.learnt
        self._least, self._most = least, most
        self._windows: Windows | None = None  # before the first epoch, and after the end
        self._look_s = 0.0
        self._epoch: Any = None  # of the trainer's; None between two of them

    def begun(self, epoch: Any) -> None:
        """Count the time from here on, in this epoch."""
        if self._windows is None:
            self._windows = Windows(self._transport, self._processes, self._learnt.window)
            self._learnt.window = Sums()
        elif self._epoch is not None:
            self._windows.renew(set())  # an epoch was broken off, at a moment that is not known
        self._windows.go_on()
        self._epoch = epoch
        if self._processes.seats is not None:
            self._processes.seats.refused = 0  # of workers that could not be added
        self._pool.learnt_workers = self._processes.working

    def over(self) -> None:
        """Count no time until the next epoch begins."""
        if self._windows is not None:
            self._windows.pause()
        self._epoch = None

    def closed(self) -> None:
        """Change nothing any more, and leave what was measured to the next iterator."""
        windows, self._windows = self._windows, None
        if windows is not None:
            windows.pause()
            self._learnt.window = windows.sums
        self._learnt.user = self._epoch = None

    def looks(self) -> None:
        """Look now and then whether there should be more workers, or fewer."""
        now = time.monotonic()
        if now < self._look_s or self._windows is None or self._epoch is None:
            return
        self._look_s = now + _LOOK_S
        self._processes.tend()
        window = self._windows.take()
        if window is not None:
            self._follow(window, self._windows)

    def _follow(self, window: Window, windows: Windows) -> None:
        processes, learnt = self._processes, self._learnt
        if learnt.user is not self:
            learnt.controller.forget_trial()  # it was another iterator's
            learnt.user = self
        wanted = learnt.controller.decide(window, self._limits(window))
        if wanted > window.workers:
            learnt.each_bytes = max(1, largest_bytes(processes))
            wanted = min(wanted, self._limits(window).kept(wanted))
        self._pool.waited_share = window.waits
        if wanted == window.workers:
            return
        before = processes.living()
        processes.change(wanted - window.workers, self._transport)
        windows.renew(processes.living() - before)
        self._note(window)

    def _limits(self, window: Window) -> Limits:
        memory = workers_with_memory(window.workers, self._learnt.each_bytes)
        if self._processes.seats is not None and self._processes.seats.refused:
            memory = min(memory, window.workers)
        return Limits(self._least, self._most, cores_for(self._processes), memory)

    def _note(self, window: Window) -> None:
        epoch, workers = self._epoch, self._processes.working
        change = WorkersChange(
            epoch.number, epoch.delivered.count, window.workers, workers, window.waits
        )
        self._pool.note_change(self._transport.segment, change)
