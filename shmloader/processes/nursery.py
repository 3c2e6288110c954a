"""
The trainer's side of the nursery, the process that forks replacements of dead workers.

An interrupt may come between any two lines. An order and a report are one datagram each, sent and
received by one call. An order that may not have been sent is sent again, and obeyed once; a report
stays in the mailbox, where it is read again, until the next report takes its place.
"""

import contextlib
import os
import pickle
import signal
import socket
import time
import weakref
from array import array
from collections.abc import Callable
from multiprocessing import connection as connections
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from shmloader.processes import nursery_process, starting, watching
from shmloader.processes.nursery_process import ORDER, REPORT, RUNS, Replace
from shmloader.processes.watching import ParentWatch

_NO_REPORT = REPORT.pack(-1, 0, RUNS)
_SLICE_S = 0.02  # between two looks for processes whose end is not reported
_PATIENCE_S = 5.0  # to wait for a pid: the nursery may still be starting
_END_S = 0.3  # for the nursery to end its children, before it is killed


class Spec(Protocol):
    """What a worker is started with, as far as the nursery has to know it."""

    @property
    def parent(self) -> ParentWatch:
        """The watch of the trainer."""
        ...

    @property
    def signal_mask(self) -> set[int]:
        """The signals that workers block."""
        ...


class Replacement:
    """
    A worker that the nursery starts, with that part of a Process's interface that is used here.

    Attributes:
        exitcode: As a Process has it; an errno if it could not be started; None while it runs.
        ident: Its pid, as far as it was reported.
    """

    daemon = True

    def __init__(self, nursery: "Nursery", number: int, worker_id: int, progress: Any) -> None:
        self._nursery = nursery
        self._order: Any = (number, worker_id, pickle.dumps(progress))
        self._asked: Any = None  # the last signal to be sent to it
        self.name = f"Replacement-{number} of worker {worker_id}"
        self.exitcode: int | None = None
        self.ident: Any = None
        self._started: str | None = None

    def start(self) -> None:
        """Order it, unless that was surely done; however often it is ordered, it starts once."""
        if self._order is None or self.exitcode is not None or self._nursery.is_lost:
            return
        try:
            if self._nursery.order(*self._order):
                self._order = None
        except OSError as error:
            self.exitcode = error.errno

    def record(self, pid: int, code: int) -> None:
        """Record a report; the same one may come again."""
        if pid and self.ident is None:
            self._started = watching.start_time(pid)
            self.ident = pid
            self._send()
        if code != RUNS:
            self.exitcode = code

    @property
    def pid(self) -> int | None:
        """Its process; None if it could not be started, or no report came in time."""
        self._nursery.read_reports_until(
            lambda: self.ident is not None or self.is_over, _PATIENCE_S
        )
        pid: int | None = self.ident
        return pid

    @property
    def is_over(self) -> bool:
        """True if it has ended, or never will begin, as far as was reported."""
        if self.exitcode is not None:
            return True
        if self.ident is None:
            # Each replacement reports its pid before it closes the nursery's endpoint, and the
            # nursery is lost when no process has that endpoint any more.
            return self._nursery.is_lost
        # If the nursery is gone or stopped, no report of an end will arrive.
        return (self._nursery.is_lost or self._asked is not None) and not self._runs()

    def _runs(self) -> bool:
        return watching.is_running(self.ident, self._started)

    def is_alive(self) -> bool:
        """Returns True if it runs, or is about to."""
        self.start()
        self._nursery.read_reports()
        return not self.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most timeout seconds."""
        self.start()  # without an order there would be no report of its end
        self._nursery.read_reports_until(lambda: self.is_over, timeout)

    def kill(self) -> None:
        """Kill it, together with the nursery if that does not report which process it is."""
        self._asked = signal.SIGKILL
        self._nursery.read_reports_until(lambda: self.ident is not None or self.is_over, _SLICE_S)
        if self.ident is None and not self.is_over:
            self._nursery.kill()
        self._send()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._asked = signal.SIGTERM
        self._nursery.read_reports()
        self._send()

    def _send(self) -> None:
        if self._asked is None or self.ident is None or self.exitcode is not None:
            return
        if self._runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ident, self._asked)


class _Endpoint(socket.socket):
    """The trainer's endpoint of the channel, which closes without a warning in forked children."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()


class Nursery:
    """
    Starts replacements without waiting for them, and ends like a Process.

    Attributes:
        process: The nursery's process.
        is_lost: True if it is gone. Its replacements run on, and their ends are not reported.
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
        near_end, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = _Endpoint(fileno=near_end.detach())
        self._channel.setblocking(False)
        self._mailbox = bytearray(_NO_REPORT)
        self._children: weakref.WeakValueDictionary[int, Replacement]
        self._children = weakref.WeakValueDictionary()
        self._count = 0
        self.is_lost = False
        # Under fork the nursery inherits this endpoint; while it has it, it would see no EOF.
        inherited = self._channel if context.get_start_method() == "fork" else None
        sealed = _Sealed(spec)
        self.process = context.Process(
            target=nursery_process.run,
            args=(spec.parent, sealed, replace, spec.signal_mask, self._far_end, inherited),
            daemon=True,
        )

    def start(self) -> None:
        """Start the process."""
        with self._far_end:
            starting.start(self.process)

    def is_alive(self) -> bool:
        """Returns True if the process runs."""
        return bool(self.process.is_alive())

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most timeout seconds."""
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

    def replacement(self, worker_id: int, progress: Any) -> Replacement:
        """Make a worker instead of a reaped one; it is not started."""
        number = self._count
        self._count += 1
        child = Replacement(self, number, worker_id, progress)
        self._children[number] = child
        return child

    def order(self, number: int, worker_id: int, progress: bytes) -> bool:
        """
        Have a replacement started. Returns True if the order was sent.

        Raises:
            OSError: There is no descriptor left, or no memory, for the progress.
        """
        with open(os.memfd_create("shmloader-progress", os.MFD_CLOEXEC), "wb") as file:
            file.write(progress)
            file.seek(0)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file.fileno()]))]
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._channel.sendmsg([ORDER.pack(number, worker_id)], rights, socket.MSG_NOSIGNAL)
                return True
        return False

    def read_reports(self, timeout_s: float | None = 0.0) -> None:
        """Read all reports; waits at most timeout_s seconds for the first one."""
        self._read_mailbox()
        while not self.is_lost and connections.wait([self._channel], timeout_s):
            self.is_lost = not self._receive_report()
            self._read_mailbox()
            timeout_s = 0.0

    def _receive_report(self) -> bool:
        """Receive a report into the mailbox. Returns False at EOF."""
        try:
            return self._channel.recv_into(self._mailbox) > 0
        except (BlockingIOError, ConnectionResetError):
            # The kernel says the second once, before the reports, if an order was never read.
            return True

    def _read_mailbox(self) -> None:
        number, pid, code = REPORT.unpack(self._mailbox)
        child = self._children.get(number)
        if child is not None:
            child.record(pid, code)

    def read_reports_until(self, is_enough: Callable[[], bool], timeout_s: float | None) -> None:
        """Read reports until is_enough() is true, or timeout_s seconds have passed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.read_reports()
        while not is_enough():
            left_s = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return
            if self.is_lost:
                time.sleep(min(left_s, _SLICE_S))
            else:
                self.read_reports(min(left_s, _SLICE_S))

    def close(self) -> bool:
        """
        End the process and all of its replacements.

        Returns:
            True if every replacement that still runs is known here.
        """
        if self._count > 0:
            self.terminate()
            self.join(_END_S)
        self.kill()
        self.join()
        self._far_end.close()
        self.read_reports_until(lambda: self.is_lost, _END_S)
        was_at_eof, self.is_lost = self.is_lost, True
        self._channel.close()
        return was_at_eof


class _Sealed:
    """Content on its way to another process; once pickled on that way, it stays so until opened."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self._pickled: bytes | None = None

    def __getstate__(self) -> tuple[None, bytes]:
        return None, bytes(ForkingPickler.dumps(self._content))

    def __setstate__(self, state: tuple[None, bytes]) -> None:
        self._content, self._pickled = state

    def open(self) -> Any:
        """Return the content; a new one for each process that unpickles it."""
        return self._content if self._pickled is None else pickle.loads(self._pickled)
