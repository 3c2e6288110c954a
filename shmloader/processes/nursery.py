"""
The trainer's side of the nursery, the process that forks replacements of dead workers.

If the nursery is gone when it is needed, another one is started as the first one was, but now. An
order that a dying nursery may have taken, or that an interrupt hid, is sent again: what came of it
stands in the file of the replacement's birth, and at most one process obeys it.

An interrupt may come between any two lines; the next look goes on.
"""

import contextlib
import errno
import os
import pickle
import select
import signal
import socket
import time
from array import array
from collections.abc import Callable
from typing import Any, Protocol

from shmloader.errors import REFUSALS, naming
from shmloader.processes import nursery_process, starting, watching
from shmloader.processes.birth import Birth, Event
from shmloader.processes.nursery_process import ORDER, Replace, Sealed
from shmloader.processes.watching import ParentWatch

_LOOK_S = 0.005  # between two looks while a process is waited for
_PATIENCE_S = 5.0  # with a nursery that may still be starting, and with what keeps it from that
_NOTE_S = 0.1  # to wait for the exit code of a process that has ended
_PAUSE_S = 0.05  # from one start of a nursery to the next
_END_S = 0.3  # for the nursery to end its children, before it is killed
_KILL_S = 5.0  # after SIGKILL only the kernel can be waited for

_WITHOUT = "or leave restarts and worker_bytes out"


class Spec(Protocol):
    """What a worker is started with, as far as the nursery has to know it."""

    parent: ParentWatch  # of the trainer; workers that open the spec watch from then on
    signal_mask: set[int]  # what workers block


class Replacement:
    """
    A worker that the nursery starts, with that part of a Process's interface that is used here.

    Attributes:
        exitcode: As a Process has it; an errno if it could not be started; None while it runs, or
            if its parent died before it was reaped.
        ident: Its pid, as far as it was noted.
    """

    daemon = True

    def __init__(self, nursery: "Nursery", worker_id: int, progress: Any) -> None:
        """Be the worker instead of a reaped one; it is not started."""
        self._nursery = nursery
        self._content = pickle.dumps((worker_id, progress))
        self._birth: Birth | None = None
        self._taker: Any = None  # the nursery's process that the order was sent to
        self._trouble_since_s: float | None = None
        self._started: str | None = None
        self._was_asked = False  # to end, by a signal
        self._seen_ended_s: float | None = None
        self.exitcode: int | None = None
        self.ident: int | None = None

    def start(self) -> None:
        """
        Order it if no nursery obeys an order; it starts once, however often it is ordered.

        What is short when the trainer orders may be there at the next look, for a while.
        """
        taker = self._taker
        # The file is looked at last: a nursery may have obeyed and died.
        if (taker is not None and taker.is_alive()) or self.is_decided():
            return
        if taker is not None:
            self._taker = None
            is_reason = taker.exitcode in errno.errorcode
            self._meet_trouble(taker.exitcode if is_reason else errno.EOWNERDEAD, is_reason)
            return
        try:
            self._birth = self._birth or Birth.make(self._content)
            self._taker = self._nursery.order(self._birth)
        except OSError as error:
            self._meet_trouble(error.errno or errno.EIO, error.errno in REFUSALS)

    def _meet_trouble(self, code: int, is_final: bool) -> None:
        now = time.monotonic()
        self._trouble_since_s = self._trouble_since_s or now
        if is_final or now - self._trouble_since_s >= _PATIENCE_S:
            self._cancel(code)

    def _cancel(self, code: int) -> None:
        """Have it never begin, unless it has begun."""
        if self._birth is None:
            self.exitcode = code
        else:
            self._birth.add(Event.FAILED, code=code)
            self._read()

    def is_decided(self) -> bool:
        """Returns True if it is known which process it is, or that none will be."""
        if self.ident is None:
            self._read()
        return self.ident is not None or self.exitcode is not None

    def _read(self) -> None:
        """Take in what its file says."""
        if self._birth is None or self.exitcode is not None:
            return
        for record in self._birth.records():
            is_first = self.ident is None
            if is_first and record.event == Event.BORN:
                self._started, self.ident = record.start_time, record.pid
            elif is_first or (record.event, record.pid) == (Event.ENDED, self.ident):
                self.exitcode = record.code
                self._birth.close()
                return

    @property
    def pid(self) -> int | None:
        """Its process; None if it could not be started, or nothing was noted in time."""
        _wait_until(self._is_begun, _PATIENCE_S)
        return self.ident

    def _is_begun(self) -> bool:
        self.start()
        return self.is_decided()

    @property
    def is_over(self) -> bool:
        """True if it has ended, or never will begin, as far as is known."""
        self._read()
        if self.ident is None or self.exitcode is not None:
            return self.exitcode is not None
        return not self._runs() and self._code_is_final(self.ident)

    def _code_is_final(self, pid: int) -> bool:
        """Returns True if no exit code is to be waited for: its parent may be dead or stopped."""
        self.exitcode = watching.reap(pid, self._started)
        now = time.monotonic()
        self._seen_ended_s = self._seen_ended_s or now
        return self.exitcode is not None or self._was_asked or now - self._seen_ended_s > _NOTE_S

    def _runs(self) -> bool:
        return self.ident is not None and watching.is_running(self.ident, self._started)

    def is_alive(self) -> bool:
        """Returns True if it runs, or is about to."""
        return not self.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most timeout seconds."""
        _wait_until(lambda: self.is_over, timeout)

    def kill(self) -> None:
        """Kill it; if it has not begun, the nursery instead, which may be stopped."""
        hangs = not self.is_decided()
        self._end(signal.SIGKILL)
        if hangs:
            self._nursery.kill()

    def terminate(self) -> None:
        """Send it SIGTERM; if it has not begun, it never will."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if not self.is_decided():
            self._cancel(errno.ECANCELED)
        if self.ident is not None and self.exitcode is None and self._runs():
            self._was_asked = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ident, number)


class _Endpoint(socket.socket):
    """The trainer's endpoint of the channel, which closes without a warning in forked children."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()


class Nursery:
    """
    Starts replacements without waiting for them, and ends like a Process.

    Attributes:
        process: That forks them now; another one is started when it is gone and needed.
        count: How many such processes were started.
    """

    def __init__(self, context: Any, spec: Spec, replace: Replace) -> None:
        """
        Make the process; it is not started.

        Args:
            context: Of multiprocessing, the one that starts the workers.
            spec: What any of the workers is started with.
            replace: A module's function, to be called in each replacement with the spec, the
                worker's id and the progress of the dead worker.
        """
        _try_calls()
        self._context, self._spec, self._replace = context, spec, replace
        self._due_s = 0.0  # when the next process may be started
        self.count = 0
        self._make()

    def _make(self) -> None:
        near_end, self._far_end = _channel()
        self._channel = _Endpoint(near_end.family, near_end.type, near_end.proto, near_end.detach())
        # Under fork the nursery inherits this endpoint; while it has it, it would see no EOF.
        inherited = self._channel if self._context.get_start_method() == "fork" else None
        spec = self._spec
        self.process = self._context.Process(
            target=nursery_process.run,
            args=(
                *((spec.parent.pid, spec.parent.started), Sealed(spec), self._replace),
                *(spec.signal_mask, self._far_end, inherited),
            ),
            daemon=True,
        )

    def start(self) -> None:
        """Start the process."""
        with self._far_end:
            starting.start(self.process)
        self.count += 1

    def is_alive(self) -> bool:
        """Returns True if the process runs."""
        is_alive: bool = self.process.is_alive()
        return is_alive

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most timeout seconds."""
        if self.process.ident is not None:
            self.process.join(timeout)

    def terminate(self) -> None:
        """Close the channel for orders: the nursery ends its children and then itself."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it, and leave its children to the trainer."""
        if self.is_alive():
            self.process.kill()

    def order(self, birth: Birth) -> Any:
        """
        Have a process forked for a birth, by a new nursery if there is none.

        Returns:
            The process that the order was sent to; None: not now.

        Raises:
            OSError: There is no descriptor, process or memory left, for the order or the nursery.
        """
        if not self.is_alive():
            now = time.monotonic()
            if now < self._due_s:
                return None
            self._due_s = now + _PAUSE_S
            self._make()
            self.start()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [birth.fileno()]))]
        with contextlib.suppress(BlockingIOError, ConnectionError):
            order = ORDER.pack(birth.content_bytes)
            self._channel.sendmsg([order], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            return self.process
        return None

    def close(self) -> None:
        """End the process and all of its children."""
        self.terminate()
        self.join(_END_S)
        self.kill()
        self.join(_KILL_S)
        self._far_end.close()
        self._channel.close()


def _wait_until(is_enough: Callable[[], bool], timeout_s: float | None) -> None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_enough():
        left_s = _LOOK_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            return
        # Not by time.sleep(): where clock_nanosleep is refused, that is an error.
        select.poll().poll(1000 * min(left_s, _LOOK_S))


def _channel() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _try_calls() -> None:
    """
    Make the system calls that healing needs and nothing else does.

    Raises:
        OSError: One of them is refused, as it would be in the nursery, which could only print it.
    """
    with naming("socketpair", _WITHOUT):
        near_end, far_end = _channel()
    birth = Birth.make(b"")
    here = os.getpid()  # no child of itself, so it cannot be reaped
    trials: dict[str, Callable[[], object]] = {
        "sendmsg": lambda: near_end.sendmsg([ORDER.pack(0)]),
        "recvmsg": lambda: far_end.recvmsg(ORDER.size),
        "pread64": birth.records,
        "wait4": lambda: os.waitpid(here, os.WNOHANG),
    }
    with near_end, far_end:
        for call, trial in trials.items():
            with naming(call, _WITHOUT), contextlib.suppress(ChildProcessError):
                trial()
