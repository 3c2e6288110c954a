"""
Threads that fetch samples, for datasets that wait: for a network, or a disk.

They are daemons of our own: an executor's would be joined at the process's end, and one that is
blocked in user code would keep the worker from leaving.
"""

import contextvars
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import numpy
import torch

from shmloader.worker.seeds import Turn, taking

_LEAVE_S = 0.5  # less than the trainer gives a worker


class Task:
    """One sample to be fetched, or all of a request where the dataset takes them at once."""

    __slots__ = ("error", "fetch", "index", "is_done", "is_dropped", "sample", "turn")

    def __init__(
        self,
        fetch: Callable[[Any], Any],
        index: Any,
        turn: Turn | None,
        error: BaseException | None = None,
    ) -> None:
        self.fetch: Any = fetch
        self.index = index
        self.turn = turn
        self.sample: Any = None
        self.error = error  # in place of something to fetch, or raised by the dataset, of any kind
        self.is_done = False  # True when there is a sample or an error
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
        self.fetch = self.sample = self.error = None

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

    Of torch's it is a list; what is in context variables comes with a copy of the context.
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
        numpy.seterr(**self._float_errors)
        torch.set_grad_enabled(self._grad)
        if self._inference:
            torch.inference_mode().__enter__()
        if self._default_device.type != "cpu":
            torch.set_default_device(self._default_device)
        if self._cuda_device is not None:
            torch.cuda.set_device(self._cuda_device)
        self._context.copy().run(work)


class FetchThreads:
    """Fetches tasks in the order in which they are put, on several threads."""

    def __init__(self, count: int, done: Callable[[Task], None]) -> None:
        """Start threads with this one's modes; `done` is called there with each task."""
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._done = done
        self._is_over = False
        work, modes = (self._work,), _Modes()
        self._threads = [
            threading.Thread(target=modes.run, args=work, name=f"shmloader fetch {i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, task: Task) -> None:
        self._tasks.put(task)

    def end(self) -> None:
        """
        Have the threads leave, each when it has fetched what it has begun, and wait a moment.

        While an interpreter exits, as a spawned worker's does, a thread that returns from native
        code is unwound, and frames of C++ make of that the end of the process by abort().
        """
        self._is_over = True
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_over:
            task.run()
            self._done(task)
            del task  # or the sample would live until the next one
