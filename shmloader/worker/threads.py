"""
Threads that fetch samples, for datasets that wait: for a network, or a disk.

They are daemons of our own: an executor's would be joined at the process's end, and one that is
blocked in user code would keep the worker from leaving.
"""

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import numpy
import torch

from shmloader.worker.pace import AT_FIRST, Pace
from shmloader.worker.seeds import Turn, taking


class Task:
    """
    One sample to be fetched, or all samples of a request where the dataset takes them at once.

    Attributes:
        index: What the dataset is asked for.
        is_done: True when there is a sample or an error.
        error: Raised by the dataset, of any kind.
    """

    __slots__ = ("error", "fetch", "index", "is_done", "is_dropped", "sample", "turn")

    def __init__(
        self,
        fetch: Callable[[Any], Any],
        index: Any,
        turn: Turn | None,
        error: BaseException | None = None,
    ) -> None:
        """Have something to fetch, or an error in place of that."""
        self.fetch = fetch
        self.index = index
        self.turn = turn
        self.sample: Any = None
        self.error = error
        self.is_done = False
        self.is_dropped = False

    def run(self) -> None:
        """Fetch, on whichever thread this is."""
        if not self.is_dropped and self.error is None:
            try:
                with nullcontext() if self.turn is None else taking(self.turn):
                    self.sample = self.fetch(self.index)
            except BaseException as error:
                self.error = error
        self.is_done = True
        if self.is_dropped:
            self.drop()  # it was fetched meanwhile

    def drop(self) -> None:
        """
        Fetch nothing, if it is not begun, and keep nothing of it.

        The traceback of an error leads back to the task. Without a collection of such circles they
        would keep what the dataset's frames refer to.
        """
        self.is_dropped = True
        self.sample = self.error = None

    def take(self) -> Any:
        """Return the sample once, or raise the error."""
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, and those of whoever waits
        sample, self.sample = self.sample, None
        return sample


class _Modes:
    """
    What is kept for each thread, and the program or the worker's init function may have set.

    Of torch's it is a list; whatever keeps its settings in context variables, such as
    `numpy.seterr` and `decimal`, comes with a copy of the context.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._float_errors = numpy.geterr()  # numpy 1.26 has them beside the context
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._default_device = torch.get_default_device()
        self._cuda_device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run(self, work: Callable[[], None]) -> None:
        """Work on this thread as on the one that made this."""
        self._enter()
        self._context.copy().run(work)

    def _enter(self) -> None:
        numpy.seterr(**self._float_errors)
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
        self._pace = Pace() if count is None else None
        self._spare: deque[None] = deque()  # one for each thread that is too many
        self._held = self._most_held = 0
        self._count = 0
        self._judging = threading.Lock()
        self._set_count(AT_FIRST if count is None else count)

    @property
    def count(self) -> int:
        """How many threads fetch now."""
        return self._count

    def put(self, task: Task) -> None:
        """Have a task fetched, and hold it until it is dropped."""
        self._held += 1
        self._most_held = max(self._most_held, self._held)
        self._tasks.put(task)

    def drop(self, tasks: Iterable[Task]) -> None:
        """Have no thread begin what is left of these tasks, which were put by the same thread."""
        for task in tasks:
            task.drop()
            self._held -= 1

    def end(self) -> None:
        """Let the threads leave, each when it has fetched what it has begun."""
        self._set_count(0)

    def _set_count(self, count: int) -> None:
        while self._count < count:
            if not self._spares_one():
                name = f"shmloader fetch {self._count}"
                threading.Thread(
                    target=self._modes.run, args=(self._work,), name=name, daemon=True
                ).start()
            self._count += 1
        while self._count > count:
            self._spare.append(None)
            self._tasks.put(None)  # behind all tasks: for a thread that has none
            self._count -= 1

    def _spares_one(self) -> bool:
        """Returns True if there was a thread too many; the caller takes its place."""
        try:
            self._spare.pop()
        except IndexError:
            return False
        return True

    def _work(self) -> None:
        pace = self._pace
        while not (self._spare and self._spares_one()):
            task = self._tasks.get()
            if task is None:
                continue
            # A thread's CPU time is a system call.
            needs_cpu = pace is not None and pace.is_starting
            begin, cpu_begin = time.monotonic(), time.thread_time() if needs_cpu else 0.0
            task.run()
            end = time.monotonic()
            cpu_s = time.thread_time() - cpu_begin if needs_cpu else 0.0
            self._done(task)
            del task  # or the sample would live until the next one
            if pace is not None and pace.note(end - begin, cpu_s, end):
                self._adjust(pace)

    def _adjust(self, pace: Pace) -> None:
        if self._judging.acquire(blocking=False):
            try:
                if self._count == 0:
                    return  # they leave
                self._set_count(pace.judge(self._count, self._most_held))
            finally:
                self._judging.release()
