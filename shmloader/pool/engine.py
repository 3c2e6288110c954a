"""
Sends calls to workers, and settles their futures.

Whoever waits for results may lead: one thread at a time drives the transport and settles what comes
for all of them. That is the caller of a map, and from the first `submit` on a thread of the pool's
own, for good.

A worker has one call, and of a map one more, so that it need not wait for the caller. More would
let a call wait behind one that waits for it.
"""

import contextlib
import itertools
import math
import os
import queue
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from shmloader.core import Kind, generation
from shmloader.memory import policy, shortages
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import shape_of
from shmloader.pool import calling
from shmloader.pool.call import Call, Request, Rest, error_of
from shmloader.pool.client import PoolClient
from shmloader.processes.watching import ParentWatch
from shmloader.transport.healing import describe_end
from shmloader.transport.received import Answer
from shmloader.transport.transport import Transport
from shmloader.transport.waiting import Waiting
from shmloader.transport.workers import Workers

_AHEAD = 2  # calls of a map that a worker has at most
_LOOK = object()  # in place of an answer: look at what is asked


@dataclass
class PoolSetting:
    """How an engine is run; the names are `Pool`'s."""

    workers: int
    context: Any
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    most_calls: int | None
    slots: int | None
    ring_bytes: int | None
    restarts: int
    preload: tuple[str, ...] | None


class Engine:
    """
    The calls of one pool.

    Attributes:
        workers: How many there are.
        segments: Counts over the pool's life.
        is_ending: No call is taken any more.
        broken: Why all calls fail; None: they do not.
        thread: That leads for good; None: there was no `submit` yet.
    """

    def __init__(self, setting: PoolSetting) -> None:
        self.segments = SegmentPool()
        self.segments.name = f"pool {self.segments.number}"
        self.is_ending = False
        self.broken: str | None = None
        self.thread: threading.Thread | None = None
        self.workers = setting.workers
        self._setting = setting
        self._generation = generation()
        self._owner_pid = os.getpid()
        # Reentrant for finalizers, as is the other.
        self._gate = threading.RLock()  # around what takes calls, and what says that none are taken
        self._lead = threading.RLock()
        self._waiting_calls: deque[Call] = deque()
        self._rests: deque[Rest] = deque()
        self._sent: dict[int, Call] = {}  # by key
        self._keys = itertools.count()
        self._is_nudged = False
        self._active = [True] * setting.workers
        self._transport: Transport | None = None
        self._is_closed = False

    @property
    def is_of_another_process(self) -> bool:
        """True in a forked child of the process that made the pool."""
        return self._generation != generation()

    # Any thread

    def take(self, call: Call | Rest) -> None:
        """
        Take a call, or the rest of a map, to be sent when a worker is free.

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
            if self._transport is None:
                self._open()
            if isinstance(call, Rest):
                self._rests.append(call)
            else:
                self._waiting_calls.append(call)
        self.nudge()

    def nudge(self) -> None:
        """Have the thread that leads look at what is asked."""
        self._is_nudged = True
        transport = self._transport
        if transport is not None:
            transport.ledger.nudge()

    def have_led(self) -> None:
        """Have a thread lead for good."""
        with self._gate:
            if self.thread is None and not self._is_closed:
                _Exit.enter(self)
                thread = threading.Thread(target=self._lead_for_good, name="shmloader-pool")
                thread.start()
                self.thread = thread

    def draw(self, rest: Rest) -> bool:
        """Take the next call of a map. Returns False if there is none."""
        with self._gate:
            return rest.draw(self._waiting_calls)

    def leave(self, rest: Rest) -> None:
        """Do not make what is left of a map."""
        with contextlib.suppress(ValueError):  # it was drawn to its end
            self._rests.remove(rest)

    def send_now(self) -> None:
        """Send what can be sent, unless a thread leads, which does."""
        try:
            if self._transport is not None and self._lead.acquire(blocking=False):
                self._send()
        finally:
            self._release()

    def wait_for(self, call: Call, deadline_s: float) -> Any:
        """
        Wait for the result of a call, and lead meanwhile if nobody does.

        Args:
            deadline_s: By the monotonic clock.

        Raises:
            TimeoutError: It takes longer.
            BaseException: What the call has raised.
        """
        future = call.future
        if self.thread is None and not future.done():
            try:
                if self._lead.acquire(blocking=False):
                    self._adopt(call)
                    self._lead_until(future.done, deadline_s)
                else:  # another map leads, and stops when it has its own result
                    self.have_led()
            finally:
                self._release()
        left_s = None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())
        return future.result(left_s)

    def shut(self, *, waits: bool, cancels: bool) -> None:
        """Take no call any more; `Executor.shutdown` says the rest."""
        if self.is_of_another_process:
            return
        with self._gate:
            self.is_ending = True
            cancelled = list(self._waiting_calls) if cancels else []
            if cancels:
                self._rests.clear()
        for call in cancelled:
            call.future.cancel()
        self.nudge()
        if self.thread is None and not waits and not self._is_done():
            self.have_led()
        if self.thread is None:
            self._end_here()
        elif waits and self.thread is not threading.current_thread():
            self.thread.join()

    def end_soon(self) -> None:
        """End when what was asked is done, in a finalizer."""
        if self.is_of_another_process:
            return
        self.is_ending = True
        if not self._is_done():
            self.have_led()
        if self.thread is not None:
            self.nudge()
        else:
            self._close()

    # The thread that leads

    def _end_here(self) -> None:
        try:
            self._lead.acquire()
            self._lead_until(self._is_done, math.inf)
            self._close()
        finally:
            self._release()

    def _release(self) -> None:
        """Let others lead; however often this thread has been interrupted while it did."""
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
        if self._is_closed or not self.is_ending:
            return self._is_closed
        return not (self._sent or self._waiting_calls or self._rests)

    def _lead_until(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        """Send and receive until something is so, or a time has come."""
        try:
            while not is_done() and self.broken is None and self._transport is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return
                self._send()
                self._receive(left_s)
        except BaseException:
            self._recover()
            raise

    def _adopt(self, call: Call) -> None:
        """Take a call again that an interrupt has lost on its way to a worker."""
        future = call.future
        if not future.done() and call not in self._sent.values():
            if call not in self._waiting_calls:
                self._waiting_calls.appendleft(call)

    def _send(self) -> None:
        """Send calls to workers that have none, or few."""
        assert self._transport is not None, "calls were taken"
        # Also not more than these without looking at answers, which lie in slots.
        while len(self._sent) < _AHEAD * self.workers:
            worker, load = self._freest(self._transport)
            call = self._next_for(load)
            if call is None:
                return
            if not call.future.running() and not call.future.set_running_or_notify_cancel():
                continue
            try:
                request = Request(call)
            except Exception as error:
                call.future.set_exception(error)
                continue
            key = next(self._keys)
            self._sent[key] = call
            self._transport.send(worker, request, None, key)
            self._transport.pump()

    def _next_for(self, load: int) -> Call | None:
        """Take the next call that a worker with so many may have."""
        calls, rests = self._waiting_calls, self._rests
        while not calls and rests and load < _AHEAD:
            if not self.draw(rests[0]):
                rests.popleft()
        return calls.popleft() if calls and load <= calls[0].behind else None

    def _freest(self, transport: Transport) -> tuple[int, int]:
        """Return the worker with the fewest calls, and how many it has."""
        loads = transport.requests.loads()
        least = min(loads)
        return loads.index(least), least

    def _receive(self, timeout_s: float) -> None:
        assert self._transport is not None, "calls were taken"
        try:
            answer = self._waiting.take(timeout_s, self._next, self._sent, self._active)
        except Exception as error:
            self._break_unless_late(error)
            return
        if answer is _LOOK or not isinstance(answer.kind, Kind):
            return
        self._settle(answer)

    def _settle(self, answer: Answer) -> None:
        assert self._transport is not None, "calls were taken"
        result = self._transport.received.deliver(answer)
        call = self._sent.pop(answer.key)
        if answer.kind is Kind.ERROR:
            call.future.set_exception(error_of(result))
        else:
            call.future.set_result(result)

    def _next(self) -> Any:
        assert self._transport is not None, "calls were taken"
        answer = self._transport.receive()
        if answer is None and self._is_nudged:
            self._is_nudged = False
            return _LOOK
        return answer

    def _break_unless_late(self, error: Exception) -> None:
        """See to the death of a worker, if that is why no answer came."""
        dead = self._processes.dead(self._active)
        if dead and self._processes.healer is None:
            self._break(self._say_dead(dead[0]))
            return
        try:
            if not self._waiting.may_come_yet(error, self._active, lambda worker: None):
                self._break(f"an answer cannot be read: {error}")
        except Exception as reason:
            self._break(str(reason))

    def _say_dead(self, worker: int) -> str:
        process = self._processes.by_id[worker]
        if process.exitcode == calling.INITIALIZER_FAILED:
            return f"the initializer failed in pool worker {worker} (pid {process.pid}): see the log"
        return (
            f"pool worker {worker} (pid {process.pid}) {describe_end(process)}: no call that was "
            "not done is made again, unless the pool has restarts=n"
        )

    def _break(self, why: str) -> None:
        """Fail all calls, and those to come."""
        with self._gate:
            self.broken = why
            while self._rests:
                while self.draw(self._rests[0]):
                    pass
                self._rests.popleft()
        calls = [*self._sent.values(), *self._waiting_calls]
        self._sent.clear()
        self._waiting_calls.clear()
        for call in calls:
            if call.future.running() or call.future.set_running_or_notify_cancel():
                call.future.set_exception(BrokenProcessPool(why))

    def _recover(self) -> None:
        """Settle what was received when an interrupt came, and fail what it has lost."""
        transport = self._transport
        if transport is None:
            return
        for answer in list(transport.received.by_key.values()):
            self._settle(answer)
        known = transport.known()
        for key in [key for key in self._sent if key not in known]:
            call = self._sent.pop(key)
            if not call.future.done():
                call.future.set_exception(RuntimeError("an interrupt has lost the result"))

    # Start and end

    def _open(self) -> None:
        """Start the workers."""
        setting = self._setting
        with shortages.explained():
            shape = shape_of(setting.workers, _AHEAD, setting.slots, None, setting.ring_bytes)
            segment = self.segments.acquire(shape)
            reserve = policy.reserved_slots(_AHEAD * setting.workers, setting.workers, shape.slots)
            heals = setting.restarts > 0 or setting.most_calls is not None
            transport = Transport(
                segment, reserve, self.segments, heals=heals, grows=setting.slots is None
            )
            self._processes = Workers(0)
            self._waiting = Waiting(transport, self._processes)
            spec = calling.CallingSpec(
                ParentWatch(os.getpid()),
                segment.handle(),
                {*signal.pthread_sigmask(signal.SIG_BLOCK, ())},
                setting.initializer,
                setting.initargs,
                setting.most_calls,
            )
            client = PoolClient(spec, setting.preload)
            self._processes.start(setting.context, client, transport, setting.restarts)
            self._transport = transport

    def _close(self) -> None:
        """End the workers, and free what no result in use lies in."""
        if self._is_closed:
            return
        self._is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.ledger.stop()
            if self.broken is None:
                self._processes.leave()
            were_reaped = self._processes.end()
            transport.close()
            give_back = self.segments.release if were_reaped else self.segments.discard
            give_back(transport.segment)
            del self._processes, self._waiting  # they hold descriptors and the segment
        self.segments.clear()


class _Exit:
    """At exit of the interpreter, before it joins threads, the calls that were taken are made."""

    _engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
    _is_registered = False

    @classmethod
    def enter(cls, engine: Engine) -> None:
        cls._engines.add(engine)
        if not cls._is_registered:
            threading._register_atexit(cls._end)  # type: ignore[attr-defined]
            cls._is_registered = True

    @classmethod
    def _end(cls) -> None:
        for engine in list(cls._engines):
            engine.shut(waits=True, cancels=False)
