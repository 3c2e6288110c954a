"""
Threads that fetch samples, for datasets that wait: for a network, or a disk.

They are daemons of our own: an executor's would be joined at the process's end, and one that is
blocked in user code would keep the worker from leaving.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import torch

from shmloader.worker.seeds import Turn, taking

_AT_FIRST, _AT_MOST = 4, 512  # threads, where their number is to be found
_WINDOW_S = 0.02  # shortest time over which a count is judged
_BUSY = 0.8  # of a core: from here on more threads must show that they pay
_GROWTH, _GROWTH_AT_MOST = 1.5, 4.0
_BETTER, _WORSE = 1.03, 0.95  # of the best rate so far


class Task:
    """
    One sample to be fetched, or all samples of a request where the dataset takes them at once.

    Attributes:
        index: What the dataset is asked for.
        is_done: True when there is a sample or an error.
        error: Raised by the dataset, of any kind.
    """

    __slots__ = ("error", "fetch", "index", "is_done", "is_dropped", "sample", "turn")

    def __init__(self, fetch: Callable[[Any], Any], index: Any, turn: Turn | None) -> None:
        self.fetch = fetch
        self.index = index
        self.turn = turn
        self.sample: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.is_dropped = False

    def run(self) -> None:
        """Fetch, on whichever thread this is."""
        if not self.is_dropped:
            try:
                with nullcontext() if self.turn is None else taking(self.turn):
                    self.sample = self.fetch(self.index)
            except BaseException as error:
                self.error = error
        self.is_done = True

    def take(self) -> Any:
        """Return the sample once, or raise the error."""
        if self.error is not None:
            raise self.error
        sample, self.sample = self.sample, None
        return sample


class _Modes:
    """What torch keeps for each thread and the worker's init function may have set."""

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._default_device = torch.get_default_device()
        self._cuda_device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def enter(self) -> None:
        torch.set_grad_enabled(self._grad)
        if self._inference:
            torch.inference_mode().__enter__()
        if self._default_device.type != "cpu":
            torch.set_default_device(self._default_device)
        if self._cuda_device is not None:
            torch.cuda.set_device(self._cuda_device)


class FetchThreads:
    """Fetches tasks in the order in which they are put, on several threads."""

    def __init__(self, count: int | None, done: Callable[[Task], None]) -> None:
        """
        Start the threads, with the modes of the thread that calls this.

        Args:
            count: How many; None: find out while they work.
            done: Called on a thread of these with each task that is done.
        """
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._done = done
        self._modes = _Modes()
        self._pace = _Pace() if count is None else None
        self._count = 0
        self._turn = threading.Lock()
        self._set_count(_AT_FIRST if count is None else count)

    @property
    def count(self) -> int:
        """How many threads fetch now."""
        return self._count

    def put(self, task: Task) -> None:
        """Have a task fetched."""
        self._tasks.put(task)

    def _set_count(self, count: int) -> None:
        while self._count < count:
            name = f"shmloader fetch {self._count}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
            self._count += 1
        while self._count > count:
            self._tasks.put(None)  # the thread that takes it leaves
            self._count -= 1

    def _work(self) -> None:
        self._modes.enter()
        while (task := self._tasks.get()) is not None:
            task.run()
            self._done(task)
            del task  # or the sample would live until the next one
            if self._pace is not None:
                self._adjust(self._pace)

    def _adjust(self, pace: "_Pace") -> None:
        if not self._turn.acquire(blocking=False):
            pace.note_late()
            return
        try:
            count = pace.judge(self._count, self._tasks.qsize())
            if count != self._count:
                self._set_count(count)
        finally:
            self._turn.release()


class _Pace:
    """
    Finds how many threads a worker needs.

    While samples wait and the worker leaves its core idle, more threads pay. Beyond that they do
    only if the rate says so, because threads that compute take turns at Python's lock.
    """

    def __init__(self) -> None:
        self._late = 0
        self._best_rate, self._best_count = 0.0, _AT_FIRST
        self._is_settled = False
        self._begin()

    def _begin(self) -> None:
        self._fetched = 0
        self._since, self._cpu = time.monotonic(), time.process_time()

    def note_late(self) -> None:
        """Count a sample that was fetched while another thread judged."""
        self._late += 1

    def judge(self, count: int, waiting: int) -> int:
        """
        Count a sample that was fetched, and return how many threads there should be.

        Args:
            count: How many there are.
            waiting: How many samples no thread has begun.
        """
        self._fetched += 1
        now = time.monotonic()
        if self._fetched + self._late < count or now - self._since < _WINDOW_S:
            return count
        seconds = now - self._since
        rate = (self._fetched + self._late) / seconds
        busy = (time.process_time() - self._cpu) / seconds
        self._late = 0
        self._begin()
        return self._next(count, waiting, rate, busy)

    def _next(self, count: int, waiting: int, rate: float, busy: float) -> int:
        if rate > self._best_rate * _BETTER:
            self._best_rate, self._best_count = rate, count
        elif count != self._best_count and busy >= _BUSY:
            self._is_settled = True
            return self._best_count if rate < self._best_rate * _WORSE else count
        if waiting == 0 or (self._is_settled and busy >= _BUSY):
            return count
        growth = _GROWTH if busy >= _BUSY else min(_GROWTH_AT_MOST, max(_GROWTH, 1 / (busy + 1e-9)))
        return min(_AT_MOST, count + waiting, int(count * growth + 1))
