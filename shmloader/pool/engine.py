"""
Sends calls to workers, and settles their futures.

One thread at a time leads: it drives the transport, and settles all futures whose answers come. At
first that is the thread that waits for a map's results; from the first `submit` on it is a thread
of the pool's own, for good.

A worker has one call, and of a map one more, so that it need not wait for the caller. More would
let a call wait behind one that waits for it.
"""

import contextlib
import itertools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from shmloader.core import Kind, generation
from shmloader.memory.pool import SegmentPool
from shmloader.pool.call import Call, Request, Rest, error_of
from shmloader.pool.crew import AHEAD, Crew, Wanted
from shmloader.transport.received import Answer

_LOOK = Answer(Kind.NOTHING, -1)  # in place of an answer: look at what is asked
_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()  # that have a thread


class Engine:
    """
    The calls of one pool.

    Attributes:
        segments: Counts over the pool's life.
        is_ending: No call is taken any more.
        broken: Why all calls fail; None: they do not.
        thread: That leads for good; None: there was no `submit` yet.
        crew: The workers; None before the first call, and after the end.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.segments = SegmentPool()
        self.segments.name = f"pool {self.segments.number}"
        self.is_ending = self._is_nudged = False
        self.broken: str | None = None
        self.thread: threading.Thread | None = None
        self.crew: Crew | None = None
        self._wanted = wanted
        self._generation, self._owner_pid = generation(), os.getpid()
        # Both are reentrant, for finalizers and handlers of signals.
        self._gate = threading.RLock()  # around what takes calls, and what says that none are taken
        self._lead = threading.RLock()
        self._calls: deque[Call] = deque()  # that wait for a worker
        self._rests: deque[Rest] = deque()
        self._sent: dict[int, Call] = {}  # by key
        self._keys = itertools.count()

    @property
    def is_of_another_process(self) -> bool:
        """True in a forked child of the process that made the pool."""
        return self._generation != generation()

    # Any thread

    def take(self, asked: Call | Rest) -> None:
        """
        Take a call, or all calls of a map, to be sent when a worker is free.

        Raises:
            BrokenProcessPool: A worker died.
            RuntimeError: The pool was shut down, or belongs to another process.
        """
        if self.is_of_another_process:
            raise RuntimeError(
                f"this pool and its workers belong to process {self._owner_pid}, from which this "
                f"process ({os.getpid()}) was forked: make a Pool here"
            )
        with self._gate:
            if self.broken is not None:
                raise BrokenProcessPool(self.broken)
            if self.is_ending:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self.crew is None:
                self.crew = Crew(self._wanted, self.segments)
            if isinstance(asked, Rest):
                self._rests.append(asked)
            else:
                self._calls.append(asked)
        self._nudge()

    def _nudge(self) -> None:
        """Have the thread that leads look at what is asked."""
        self._is_nudged = True
        crew = self.crew
        if crew is not None:
            crew.transport.ledger.nudge()

    def draw(self, rest: Rest) -> bool:
        """Take the next call of a map. Returns False if there is none."""
        with self._gate:
            return rest.draw(self._calls)

    def leave(self, rest: Rest) -> None:
        """Do not make what is left of a map."""
        with contextlib.suppress(ValueError):  # it was drawn to its end
            self._rests.remove(rest)

    def have_led(self) -> None:
        """Have a thread lead for good."""
        with self._gate:
            if self.thread is None:
                _engines.add(self)
                self.thread = threading.Thread(target=self._lead_for_good, name="shmloader-pool")
                self.thread.start()

    def send_now(self) -> None:
        """Send what can be sent, unless another thread leads, which does."""
        try:
            if self.crew is not None and self._lead.acquire(blocking=False):
                self._send(self.crew)
        finally:
            self._release()

    def wait_for(self, call: Call, deadline_s: float) -> Any:
        """
        Wait for the result of a call, and lead meanwhile if no other thread does.

        Args:
            deadline_s: By the monotonic clock.

        Raises:
            TimeoutError: It takes longer.
            BaseException: What the call has raised.
        """
        if self.thread is None and not call.is_over():
            try:
                if self._lead.acquire(blocking=False):
                    self._adopt(call)
                    self._lead_until(call.is_over, deadline_s)
                    self._lead.release()
                else:  # another map leads, and stops when it has its own result
                    self.have_led()
            except BaseException:
                self._release()
                raise
        left_s = None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())
        return call.future.result(left_s)

    def shut(self, *, waits: bool, cancels: bool = False) -> None:
        """Take no call any more; `Executor.shutdown` says the rest."""
        if self.is_of_another_process:
            return
        with self._gate:
            self.is_ending = True
            cancelled = list(self._calls) if cancels else []
            if cancels:
                self._rests.clear()
        for call in cancelled:
            call.future.cancel()
        self._nudge()
        if self.thread is None and (waits or self._is_done()):
            self._end_here()
            return
        self.have_led()
        if waits and self.thread is not threading.current_thread():
            assert self.thread is not None, "it was started"
            self.thread.join()

    # The thread that leads

    def _end_here(self) -> None:
        try:
            self._lead.acquire()
            self._lead_until(self._is_done, math.inf)
            self._close()
        finally:
            self._release()

    def _release(self) -> None:
        """Let others lead, however often this thread was interrupted while it did."""
        with contextlib.suppress(RuntimeError):  # it does not lead
            while True:
                self._lead.release()

    def _lead_for_good(self) -> None:
        with self._lead:
            try:
                self._lead_until(self._is_done, math.inf)
            except BaseException as error:
                self._break(f"the pool's own thread failed: {error!r}")
                raise
            finally:
                self._close()

    def _is_done(self) -> bool:
        return self.is_ending and not (self._sent or self._calls or self._rests)

    def _lead_until(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        """Send and receive until something is so, or a time has come."""
        crew = self.crew
        try:
            while crew is not None and self.broken is None and not is_done():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return
                self._send(crew)
                if not is_done():  # it may be now: a call that cannot be pickled has no answer
                    self._receive(crew, left_s)
        except BaseException:
            self._recover()
            raise

    def _send(self, crew: Crew) -> None:
        """Send calls to workers that have none, or few."""
        # Not more than these without looking at answers, which lie in slots.
        while len(self._sent) < AHEAD * self._wanted.max_workers:
            worker, load = crew.freest()
            call = self._next_for(load)
            if call is None:
                return
            if not call.begin():
                continue
            try:
                request = Request(call)
            except Exception as error:
                call.future.set_exception(error)
                continue
            key = next(self._keys)
            self._sent[key] = call
            crew.transport.send(worker, request, None, key)
            crew.transport.pump()

    def _next_for(self, load: int) -> Call | None:
        """Take the next call that a worker with so many may have."""
        calls, rests = self._calls, self._rests
        while not calls and rests and load < AHEAD:
            if not self.draw(rests[0]):
                rests.popleft()
        return calls.popleft() if calls and load <= calls[0].behind else None

    def _receive(self, crew: Crew, timeout_s: float) -> None:
        def receive() -> Answer | None:
            answer = crew.transport.receive()
            if answer is None and self._is_nudged:
                self._is_nudged = False
                return _LOOK
            return answer

        notes = crew.transport.notes
        notes.ask()
        try:
            answer = crew.take(timeout_s, receive, self._sent)
            if answer is not None and answer is not _LOOK:
                self._settle(crew, answer)
        except Exception as error:
            self._break(str(error))
        finally:
            notes.returned()

    def _settle(self, crew: Crew, answer: Answer) -> None:
        result = crew.transport.received.deliver(answer)
        future = self._sent.pop(answer.key).future
        if answer.kind is Kind.ERROR:
            future.set_exception(error_of(result))
        else:
            future.set_result(result)

    def _break(self, why: str) -> None:
        """Fail all calls, and those to come."""
        with self._gate:
            self.broken = why
            while self._rests:
                while self.draw(self._rests[0]):
                    pass
                self._rests.popleft()
        failed = [*self._sent.values(), *self._calls]
        self._sent.clear()
        self._calls.clear()
        for call in failed:
            if call.begin():
                call.future.set_exception(BrokenProcessPool(why))

    # After an interrupt

    def _adopt(self, call: Call) -> None:
        """Take a call again that was lost on its way to a worker."""
        if call not in self._sent.values() and call not in self._calls:
            self._calls.appendleft(call)

    def _recover(self) -> None:
        """Settle what was received, and fail what was lost."""
        if self.crew is None:
            return
        transport = self.crew.transport
        for answer in list(transport.received.by_key.values()):
            self._settle(self.crew, answer)
        for key in self._sent.keys() - transport.known():
            future = self._sent.pop(key).future
            if not future.done():
                future.set_exception(RuntimeError("an interrupt has lost the result"))

    # The end

    def end_soon(self) -> None:
        """End when what was asked is done: the pool was dropped."""
        if not self.is_of_another_process and not self.is_ending:
            self.shut(waits=False)

    def _close(self) -> None:
        """End the workers, and free what no result in use lies in."""
        crew, self.crew = self.crew, None
        if crew is not None:
            crew.end(waits=self.broken is None)
        self.segments.clear()


def _end_all() -> None:
    """Make the calls that were taken, before the interpreter waits for threads."""
    for engine in list(_engines):
        engine.shut(waits=True)


threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # as concurrent.futures does
