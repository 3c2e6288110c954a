"""`Pool`, an executor like `concurrent.futures.ProcessPoolExecutor`."""

import functools
import itertools
import math
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import Any, NoReturn

from shmloader.memory import page_locks
from shmloader.options.options import modules
from shmloader.pool.call import Call, Rest, name_of
from shmloader.pool.crew import Wanted
from shmloader.pool.engine import Engine
from shmloader.pool.interruptions import Waited
from shmloader.processes import starting
from shmloader.stats import Stats
from shmloader.stats.words import percent

_MOSTLY, _OFTEN = 0.5, 0.1  # parts of the workers' time, and of the results


class Pool(Executor):
    """
    Calls functions in worker processes, as `ProcessPoolExecutor` does.

    Tensors and ndarrays in results are views of shared memory, and do not change for as long as you
    hold them; those in arguments are copied once and not pickled. See docs/pool.md for the rest.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | str | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
        slots: int | None = None,
        ring_bytes: int | None = None,
        restarts: int = 0,
        pin_memory: bool = False,
        preload: Sequence[str] | None = None,
    ) -> None:
        """
        Take note of all this; workers are started by the first call.

        Args:
            max_workers: How many processes; None: as many as this one has cores.
            mp_context: How they start, also by name; None: "forkserver", from a process that has
                imported torch, because who uses a pool may have threads.
            initializer: Called in each worker before any other function, with `initargs`.
            max_tasks_per_child: After so many calls a worker is replaced by a new one.
            slots: As for `DataLoader`: how many results and calls shared memory has room for.
            ring_bytes: As for `DataLoader`: how much of it they may take together, in bytes. A call
                or a result that is larger fails.
            restarts: How many deaths of workers are healed in an hour: the call in hand is made
                again. The next hour begins when the calls are done that were under way at the last
                death.
            pin_memory: As for `DataLoader`: tensors in results are in pinned memory.
            preload: As for `DataLoader`: modules that workers find imported.

        Raises:
            ValueError, TypeError: Something is out of range or of a wrong type.
        """
        if max_workers is None:
            max_workers = len(os.sched_getaffinity(0))
        wanted = Wanted(
            max_workers,
            _context_of(mp_context),
            initializer,
            initargs,
            max_tasks_per_child,
            slots,
            ring_bytes,
            restarts,
            pin_memory,
        )
        wanted.check()
        wanted.preload = starting.preload_of(wanted.context, modules("preload", preload))
        self._engine = Engine(wanted)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """
        Have a function called in a worker: `Executor.submit`.

        Raises:
            BrokenProcessPool: A worker has died, and `restarts` are used up.
            RuntimeError: The pool was shut down, or belongs to the process that forked this one.
        """
        call = Call((fn, args, kwargs), name_of(fn), behind=0)
        call.future = Waited(self._engine.check_wait)
        self._engine.take(call)
        self._engine.have_led()
        return call.future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """
        Call a function with items of iterables: `Executor.map`.

        It starts no thread: `next()` receives results and submits further calls. `shutdown()`
        completes the remaining ones.

        Args:
            fn: Pickled with each chunk, as its arguments are: changes to its state are lost.
            timeout: Seconds from now after which `next()` raises TimeoutError; None: no limit.
            chunksize: How many items go to a worker at once.
            buffersize: How many chunks are taken from the iterables before the first of them has
                been returned; None: all, now.

        Raises:
            ValueError, TypeError: chunksize or buffersize is below 1, or not an int.
            Exception: What `submit` raises.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        rows: Iterator[Any] = zip(*iterables, strict=False)
        if buffersize is None:
            rows = iter(list(rows))
        calls, ahead = _calls(fn, rows, chunksize), deque[Call]()
        more = functools.partial(self._take_next, calls, ahead)
        over: Callable[[], object] = bool
        if buffersize is None:
            rest = Rest(calls, ahead)
            self._engine.take(rest)
            more = functools.partial(self._engine.draw, rest)
            over = functools.partial(self._engine.leave, rest)
        for _ in range(buffersize or 0):
            more()
        self._engine.send_now()
        return self._results(ahead, more, over, deadline_s)

    def _take_next(self, calls: Iterator[Call], ahead: deque[Call]) -> bool:
        """Take the next call of a lazy map. Returns False if there is none."""
        call = next(calls, None)
        if call is not None:
            ahead.append(call)
            self._engine.take(call)
        return call is not None

    def _results(
        self,
        ahead: deque[Call],
        more: Callable[[], bool],
        over: Callable[[], object],
        deadline_s: float,
    ) -> Iterator[Any]:
        """Yield results in order; `more` takes one more call, `over` gives up those not taken."""
        try:
            # Looked at twice: the thread that leads may have taken the last call in between.
            while ahead or more() or ahead:
                results = self._engine.wait_for(ahead[0], deadline_s)
                ahead.popleft()
                more()
                results.reverse()
                while results:
                    yield results.pop()
        finally:
            over()
            while ahead:  # to its end: the error's traceback holds this frame
                ahead.popleft().future.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers when all submitted calls are done: `Executor.shutdown`."""
        self._engine.shut(waits=wait, cancels=cancel_futures)
        page_locks.look_at_idle()

    def stats(self) -> Stats:
        """Return counts as `DataLoader.stats` does, of calls instead of batches."""
        return self._engine.segments.stats()

    def report(self) -> str:
        """Report in a line how the workers used their time, and what to change."""
        return _report_on(self.stats())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Pool cannot be pickled or copied, because its workers belong to this process: make "
            "one in the process that uses it"
        )

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter the calls were made, and names of this module may be gone.
        engine = getattr(self, "_engine", None)  # there is none if __init__ has raised
        if engine is not None and not is_exiting():
            engine.end_soon()


def _calls(fn: Any, rows: Iterator[Any], chunksize: int) -> Iterator[Call]:
    """Make a call of each chunk."""
    chunks, name = iter(lambda: list(itertools.islice(rows, chunksize)), []), name_of(fn)
    return (Call((fn, chunk, None), name, behind=1) for chunk in chunks)


def _context_of(context: BaseContext | str | None) -> Any:
    if isinstance(context, BaseContext):
        return context
    if isinstance(context, ModuleType):  # multiprocessing, or torch's
        return context.get_context()
    return multiprocessing.get_context(context or "forkserver")


def _report_on(stats: Stats) -> str:
    """Say what the workers did, and what would have them do more."""
    times = (stats.worker_busy_s, stats.worker_starved_s, stats.worker_blocked_s)
    whole_s = sum(times)
    if not stats.batches or not whole_s:
        return "nothing to report: no call has returned yet"
    busy, starved, blocked = (each / whole_s for each in times)
    advice = "more workers would help, while there are free cores"
    if blocked > _OFTEN:
        advice = "drop results sooner, or raise ring_bytes"
    elif starved > _MOSTLY:
        advice = "the caller submits too late: have more calls outstanding, or raise chunksize"
    line = (
        f"the workers computed for {percent(busy)} of their time, waited for calls for "
        f"{percent(starved)} and for memory for {percent(blocked)}: {advice}"
    )
    if stats.spilled > _OFTEN * stats.batches:
        reasons = ", ".join(stats.spills)
        line += f"; {stats.spilled} of {stats.batches} results were copied out ({reasons})"
    return line
