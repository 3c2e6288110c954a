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
from statistics import median
from typing import Any

import numpy
import torch

from shmloader.worker.seeds import Turn, taking

_AT_FIRST, _AT_MOST = 2, 512  # threads, where their number is to be found
_WINDOW_S = 0.05  # shortest time over which a count is judged
_RATES = 5  # windows of which the middle rate counts
_AT_START, _GREW = 4, 2.0  # times as many threads at least, as long as they fetch twice as much
_KEPT = 0.85  # of a rate, or fewer threads are slower
_SPARE = 1.5  # threads per task that is needed on its way
_ABOUT = 0.75  # of a count: what is nearer is the same
_STALE_S, _PROBE = 10.0, 0.75  # after this time fewer threads show how long a task takes now


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
        self._pace = _Pace() if count is None else None
        self._held = self._most_held = 0
        self._count = 0
        self._turn = threading.Lock()
        self._set_count(_AT_FIRST if count is None else count)

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
        """Let the threads leave when they have fetched what they were given."""
        self._set_count(0)

    def _set_count(self, count: int) -> None:
        while self._count < count:
            name = f"shmloader fetch {self._count}"
            threading.Thread(
                target=self._modes.run, args=(self._work,), name=name, daemon=True
            ).start()
            self._count += 1
        while self._count > count:
            self._tasks.put(None)  # the thread that takes it leaves
            self._count -= 1

    def _work(self) -> None:
        pace = self._pace
        while (task := self._tasks.get()) is not None:
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

    def _adjust(self, pace: "_Pace") -> None:
        if self._turn.acquire(blocking=False):
            try:
                if self._count == 0:
                    return  # they leave
                self._set_count(pace.judge(self._count, self._most_held))
            finally:
                self._turn.release()


class _Pace:
    """
    Finds how many threads a worker needs: the rate times the shortest mean time of a task.

    By Little's law as many tasks are begun and not done at that rate if none waits for another: for
    Python's lock, for a core, or for a server that has enough to do. More threads would only wait
    for each other. It is the rule of BBR for the packets that a network should hold.

    At the start there is no rate to go by: as many threads as would keep a core busy are tried, by
    how much of its time a task computes.

    Attributes:
        is_starting: True while more threads fetch many times more, and CPU times are wanted.
    """

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._task_s = 0.0  # shortest mean time of a task; 0: not known
        self._noted_at = 0.0
        self.is_starting = True
        self._is_probing = False
        self._rate_before = 0.0  # that of more threads, when some were taken away
        self._begin(0.0)

    def _begin(self, at: float) -> None:
        self._since = at
        self._fetched = 0
        self._tasks_s = self._cpu_s = 0.0

    def note(self, task_s: float, cpu_s: float, now: float) -> bool:
        """
        Count a sample that was fetched; on several threads, so that a few may be lost.

        Args:
            task_s: How long it took.
            cpu_s: How long it computed; needed at the start only.
            now: When it was there.

        Returns:
            True if it is time to judge.
        """
        if not self._since:
            self._begin(now)
        if now < self._since:  # begun with another number of threads
            return False
        self._fetched += 1
        self._tasks_s += task_s
        self._cpu_s += cpu_s
        return now - self._since >= _WINDOW_S

    def judge(self, count: int, held: int) -> int:
        """
        Return how many threads there should be.

        Args:
            count: How many there are.
            held: How many samples the worker had at most, done or not. More threads would have
                nothing to do. With one less, a last sample waits for all the others: where they
                only wait, they begin together and end together.
        """
        now, fetched = time.monotonic(), self._fetched
        if fetched < count or now - self._since < _WINDOW_S:  # or judged meanwhile
            return count
        rate, mean_s = fetched / (now - self._since), self._tasks_s / fetched
        wanted = count
        if rate * mean_s >= _ABOUT * count:  # or threads had nothing to do: the trainer is slower
            wanted = min(self._next(count, rate, mean_s, now), max(count, held), _AT_MOST)
        else:
            self.is_starting = False
        # A new thread has to connect to its server first, so few more are none, unless then nothing
        # waits for a thread.
        is_enough = count < wanted == held
        if _ABOUT < wanted / count < 1 / _ABOUT and not is_enough and not self._is_probing:
            wanted = count
        if wanted < count and not self._rate_before:
            self._rate_before = rate
        elif wanted >= count:
            self._rate_before = 0.0
        self._begin(now if wanted == count else now + mean_s)
        return wanted

    def _next(self, count: int, rate: float, mean_s: float, now: float) -> int:
        is_slower = rate < _KEPT * self._rate_before
        if is_slower and not self._is_probing:
            self._rates.clear()  # tasks take longer than they did: find out anew
            self._task_s, self.is_starting = 0.0, True
        self.is_starting &= rate > _GREW * max(self._rates, default=0.0)
        if self.is_starting:
            self._rates.clear()
        if self._is_probing or not 0 < self._task_s < mean_s:
            self._task_s = mean_s
        if self.is_starting or is_slower:
            self._noted_at = now  # tasks do not wait for each other
        if not is_slower:
            self._rates.append(rate)
        self._is_probing = now - self._noted_at > _STALE_S
        if self.is_starting:
            busy = _SPARE * self._tasks_s / max(self._cpu_s, 1e-9)
            return round(max(count * _AT_START, min(busy, _AT_MOST)))
        need = median(self._rates) * self._task_s
        return max(1, round(need * (_PROBE if self._is_probing else _SPARE) + 0.5))
