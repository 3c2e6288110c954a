"""
Sends calls to workers, and settles their futures.

One thread at a time leads: it drives the transport, and settles all futures whose answers come. At
first that is the thread that waits for a map's results; from the first `submit` on it is a thread
of the pool's own, for good. So it is where a handler of a signal could interrupt a thread that
leads, and ask for a result there.

A worker has one call, and of a map one more, so that it need not wait for the caller. More would
let a call wait behind one that waits for it.
"""

import contextlib
import functools
import itertools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures.process import BrokenProcessPool
from types import CodeType
from typing import Any

from shmloader.core import Answer, Kind, generation
from shmloader.errors import ShmloaderError, attempt, is_within, text_of
from shmloader.memory.account import living
from shmloader.memory.segment_pool import SegmentPool
from shmloader.pool.call import Call, Request, Rest, error_in
from shmloader.pool.crew import AHEAD, Crew, Wanted
from shmloader.pool.interruptions import is_in_mode, may_be_handled

_LOOK = Answer(Kind.NOTHING, -1)  # in place of an answer: look at what is asked
_engines: "weakref.WeakValueDictionary[int, Engine]" = weakref.WeakValueDictionary()  # with workers
_has_ended = False  # the interpreter: no call is taken any more, and no thread can be started
_LOOK_S = 0.005  # between two looks for handlers, which take as long as a fifth of a small call


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
        self.is_ending = self._is_nudged = self._is_interrupted = self._is_kept_waiting = False
        self.broken: str | None = None
        self.thread: threading.Thread | None = None
        self.crew: Crew | None = None
        self._wanted = wanted
        self._generation, self._owner_pid = generation(), os.getpid()
        # Both are reentrant, for finalizers and handlers of signals.
        self._gate = threading.RLock()  # around what takes calls, and what says that none are taken
        self._lead = threading.RLock()
        self._looked_at = -math.inf  # for handlers
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
                f"process ({os.getpid()}) was forked: make a Pool in this process"
            )
        with self._gate:
            if self.broken is not None:
                raise BrokenProcessPool(self.broken)
            if self.is_ending:
                raise RuntimeError("cannot schedule new futures after shutdown")
            _engines[id(self)] = self  # before the look: the end looks the other way round
            if _has_ended:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            if self.crew is None:
                self._open()
            if isinstance(asked, Rest):
                self._rests.append(asked)
            else:
                self._calls.append(asked)
        self._nudge()

    def _open(self) -> None:
        if is_within(self, {Engine._open.__code__}):
            raise RuntimeError(
                "a signal handler or a finalizer, which interrupted the start of this pool's "
                "workers, is using the pool: call it later"
            )
        self.crew = Crew(self._wanted, self.segments)

    def _nudge(self) -> None:
        """Have the thread that leads look at what is asked."""
        self._is_nudged = True
        crew = self.crew
        if crew is not None:
            crew.transport.ledger.nudge()

    def draw(self, rest: Rest) -> bool:
        """Take the next call of a map. Returns False if there is none."""
        with self._gate:
            is_drawn = rest.draw(self._calls)
        if self._is_kept_waiting:
            self._is_kept_waiting = False
            self._nudge()
        return is_drawn

    def leave(self, rest: Rest) -> None:
        """Do not make what is left of a map."""
        with contextlib.suppress(ValueError):  # it was drawn to its end
            self._rests.remove(rest)

    def have_led(self) -> None:
        """Have a thread lead for good."""
        with self._gate:
            # None is started at the end of the interpreter, where the main thread leads.
            if self.thread is None and self.crew is not None and not _has_ended:
                self.thread = threading.Thread(target=self._lead_for_good, name="shmloader-pool")
                self.thread.start()

    def send_now(self) -> None:
        """Send what can be sent, unless another thread leads, which does."""
        if not self._may_lead():
            return
        try:
            # The lock first: until then a handler may end the pool here, and there is no crew then.
            if self._lead.acquire(blocking=False) and (crew := self.crew) is not None:
                self._send(crew)
        except BaseException:
            self._is_interrupted = True
            raise
        finally:
            self._release()

    def wait_for(self, call: Call, deadline_s: float) -> Any:
        """
        Wait for the result of a call, and lead meanwhile if no other thread does.

        Args:
            deadline_s: By the monotonic clock.

        Raises:
            TimeoutError: It takes longer.
            RuntimeError: It would never come.
            BaseException: What the call has raised.
        """
        if not call.is_over():
            self.check_wait()
            if self._may_lead():
                self._lead_for(call, deadline_s)
        left_s = None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())
        try:
            return call.future.result(left_s)
        finally:
            del call  # as `Future.result`: the error's traceback holds this frame

    def _lead_for(self, call: Call, deadline_s: float) -> None:
        try:
            if self._lead.acquire(blocking=False):
                self._adopt(call)
                self._lead_until(call.is_over, deadline_s)
            else:  # another map leads, and stops when it has its own result
                self.have_led()
        finally:
            self._release()

    def _may_lead(self) -> bool:
        """
        Returns True if this thread may lead.

        Another one does if handlers may interrupt this one, or if results would be what a mode of
        torch, which is this thread's, makes of them.
        """
        if not self._is_free():
            return False
        if not _has_ended and (is_in_mode() or self._may_be_handled()):
            self.have_led()
        return self.thread is None

    def _may_be_handled(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at <= _LOOK_S:
            return False
        self._looked_at = now
        return may_be_handled()

    def _is_free(self) -> bool:
        """Returns True if no thread leads for good, and this one was not interrupted here."""
        return self.thread is None and not self._is_interrupting()

    def _is_interrupting(self) -> bool:
        """Returns True in what has interrupted this thread while it held one of the locks."""
        return self._holds(self._lead, _LEADING) or self._holds(self._gate, _TAKING)

    def _holds(self, lock: Any, methods: Collection[CodeType]) -> bool:
        # Of an interrupt the lock may be left behind, the frame is not.
        return lock._is_owned() and is_within(self, methods)

    def check_wait(self) -> None:
        """Raise a RuntimeError if what this thread wants to wait for would never come."""
        is_led = self.thread is not None and self.thread.ident is not None
        if self._holds(self._lead, _LEADING) or (not is_led and self._is_interrupting()):
            raise RuntimeError(
                "a finalizer or a callback interrupted this thread, which drives the pool, and "
                "waits for a call of the same pool, which would never return: do not wait for the "
                "pool there"
            )

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
        if (self._is_free() and self._is_done()) or (waits and self._may_lead()):
            self._end_here()
            return
        self.have_led()
        if waits and self.thread is not None and not self._is_interrupting():
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
        while self._lead._is_owned():  # type: ignore[attr-defined]
            self._lead.release()

    def _lead_for_good(self) -> None:
        with self._lead:
            try:
                self._lead_until(self._is_done, math.inf)
                with self._gate:  # the end may have come in a handler, in the middle of a `take`
                    pass
                self._lead_until(self._is_done, math.inf)
            except BaseException as error:
                self._break(
                    f"the pool's own thread failed: {type(error).__name__}: {text_of(error)}"
                )
                raise
            finally:
                self._close()

    def _is_done(self) -> bool:
        return self.is_ending and not (self._sent or self._calls or self._rests)

    def _lead_until(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        """Send and receive until something is so, or a time has come."""
        crew = self.crew
        try:
            if self._is_interrupted:
                self._recover()
            while crew is not None and self.broken is None and not is_done():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return
                self._send(crew)
                if not is_done():  # it may be now: a call that cannot be pickled has no answer
                    self._receive(crew, left_s)
        except BaseException:
            self._is_interrupted = True
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
            key = next(self._keys)
            self._sent[key] = call  # first: what an interrupt loses behind it is found missing
            request = self._request(crew, call)
            if request is None:
                self._sent.pop(key, None)
                continue
            crew.transport.send(worker, request, None, key)
            crew.transport.pump()

    def _request(self, crew: Crew, call: Call) -> Request | None:
        """Encode a call; None: it cannot be, and its future has the error."""
        shape = crew.transport.segment.shape
        request, error = attempt(functools.partial(Request, call.content, call.name, shape))
        if error is not None:
            call.tell(error=error)
        del call, error  # the traceback holds this frame, and the call would hold the error
        return request

    def _next_for(self, load: int) -> Call | None:
        """Take the next call that a worker with so many may have."""
        calls = self._calls
        while not calls and load < AHEAD and self._draw_next():
            pass
        return calls.popleft() if calls and load <= calls[0].behind else None

    def _draw_next(self) -> bool:
        """Take the next call of the first map that is not over. Returns False if it cannot now."""
        rest = next(iter(self._rests.copy()), None)
        if rest is None:
            return False
        if self.thread is not threading.current_thread():
            is_drawn = self.draw(rest)
        else:
            # The main thread may hold the gate, and wait in a handler for a call that is sent here.
            self._is_kept_waiting = True
            if not self._gate.acquire(blocking=False):
                return False
            try:
                is_drawn = self.draw(rest)
            finally:
                self._gate.release()
        if not is_drawn:
            self.leave(rest)
        return True

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
        except (BrokenProcessPool, ShmloaderError) as error:
            self._break(str(error))
        finally:
            notes.returned()

    def _settle(self, crew: Crew, answer: Answer) -> None:
        """End the future of a call that was answered."""
        call, received = self._sent[answer.key], crew.transport.received
        crew.delivery.look()
        result = crew.delivery.deliver(answer)
        error = error_in(answer.kind, result)
        if not call.future.done():  # or an interrupt came when it was
            call.tell(result, error)
        self._sent.pop(answer.key, None)  # a callback may have led
        received.drop(answer)

    def _break(self, why: str) -> None:
        """Fail all calls, and those to come."""
        self.broken = why
        self._fail_taken(why)  # first: a handler may wait for one, and its thread hold the gate
        with self._gate:
            while self._rests:
                while self.draw(self._rests[0]):
                    pass
                self._rests.popleft()
        self._fail_taken(why)

    def _fail_taken(self, why: str) -> None:
        failed = [*self._sent.values(), *self._calls]
        self._sent.clear()
        self._calls.clear()
        with contextlib.ExitStack() as others:  # which fail too if a callback of one raises
            for call in reversed(failed):
                others.callback(call.fail, BrokenProcessPool(why))

    # After an interrupt

    def _adopt(self, call: Call) -> None:
        """Take a call again that was lost on its way to a worker."""
        if call.is_over() or call in self._sent.values() or call in self._calls:
            return
        self._calls.appendleft(call)

    def _recover(self) -> None:
        """Settle what was received, and fail what was lost."""
        if self.crew is None:
            return
        transport = self.crew.transport
        received = transport.received.by_key
        while received:
            self._settle(self.crew, next(iter(received.values())))
        for key in self._sent.keys() - transport.known():
            call = self._sent.pop(key)
            if not call.future.done():
                call.tell(error=RuntimeError("an interrupt has lost the call or its result"))
        self._is_interrupted = False

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


# By lock, in which methods an interruption finds half changed what the lock is for.
_LEADING = {
    method.__code__
    for method in (Engine.send_now, Engine._lead_for, Engine._lead_for_good, Engine._end_here)
}
_TAKING = {method.__code__ for method in (Engine.take, Engine.draw, Engine.have_led)}


def _end_all() -> None:
    """Make the calls that were taken, before the interpreter waits for threads."""
    global _has_ended
    _has_ended = True
    for engine in living(_engines):
        engine.shut(waits=True)


threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # as concurrent.futures does
