"""
The trainer's side of the process that starts replacements for workers that died.

An interrupt may come between any two lines. An order and a report are one datagram each, sent and
taken by one call. An order that may not have been sent is sent again, and obeyed once; a report is
read until the next one takes its place.
"""

import contextlib
import os
import pickle
import signal
import socket
import time
import weakref
from array import array
from multiprocessing import connection as connections
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shmloader.processes import nursery_process
from shmloader.processes import starting as processes
from shmloader.processes.nursery_process import ORDER, REPORT, RUNS

_NOBODY = REPORT.pack(-1, 0, RUNS)
_SLICE_S = 0.02  # between two looks for processes of which nobody tells
_PATIENCE_S = 5.0  # of whoever asks for a pid: the nursery may still be starting
_END_S = 0.3  # for the nursery to end its children, before it is killed


class Replacement:
    """
    A worker that the nursery starts, with the part of a Process's manners that is used here.

    Attributes:
        exitcode: As a Process has it; an errno where it could not be started; None while it runs.
        ident: Its pid, as far as was heard.
    """

    daemon = True

    def __init__(self, nursery, number, worker_id, progress):
        self._nursery = nursery
        self._order: Any = (number, worker_id, pickle.dumps(progress))
        self._asked: Any = None  # the signal that it was to be sent last
        self.name = f"Replacement-{number} of worker {worker_id}"
        self.exitcode = None
        self.ident: Any = None
        self._started = None

    def start(self):
        """Order it, unless that was surely done; however often it is ordered, it starts once."""
        if self._order is None or self.exitcode is not None or self._nursery.is_lost:
            return
        try:
            if self._nursery.order(*self._order):
                self._order = None
        except OSError as error:
            self.exitcode = error.errno

    def note(self, pid, code):
        """Take up a report; the same one may come again."""
        if pid and self.ident is None:
            self._started = processes.start_time(pid)
            self.ident = pid
            self._send()
        if code != RUNS:
            self.exitcode = code

    @property
    def pid(self):
        """Its process; None where it could not be started, or nobody could say in time."""
        self._nursery.hear_until(lambda: self.ident is not None or self.is_over, _PATIENCE_S)
        return self.ident

    @property
    def is_over(self):
        """Whether it has ended, or never will begin, as far as was heard."""
        if self.exitcode is not None:
            return True
        if self.ident is None:
            # Each replacement tells its pid before it drops the nursery's end of the line, and the
            # nursery is lost when nobody has that any more.
            return self._nursery.is_lost
        # Where the nursery is gone, or stopped, nobody tells of an end.
        return (self._nursery.is_lost or self._asked is not None) and not self._runs()

    def _runs(self):
        return processes.is_running(self.ident, self._started)

    def is_alive(self):
        """Whether it runs, or is about to."""
        self.start()
        self._nursery.hear()
        return not self.is_over

    def join(self, timeout=None):
        """Wait for its end, at most timeout seconds."""
        self.start()  # or nobody would ever tell of its end
        self._nursery.hear_until(lambda: self.is_over, timeout)

    def kill(self):
        """End it at once; with the nursery, if that does not say which process it is."""
        self._asked = signal.SIGKILL
        self._nursery.hear_until(lambda: self.ident is not None or self.is_over, _SLICE_S)
        if self.ident is None and not self.is_over:
            self._nursery.kill()
        self._send()

    def terminate(self):
        """Ask it to end."""
        self._asked = signal.SIGTERM
        self._nursery.hear()
        self._send()

    def _send(self):
        if self._asked is None or self.ident is None or self.exitcode is not None:
            return
        if self._runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ident, self._asked)


class _Line(socket.socket):
    """The trainer's end of the line, closed in silence where a copy of this process drops it."""

    __slots__ = ()

    def __del__(self):
        self.close()


class Nursery:
    """
    The trainer's side: starts replacements without waiting for them, and ends like a Process.

    Attributes:
        process: The nursery's process.
        is_lost: Whether it is gone. Its replacements run on, and nobody tells of their end.
    """

    def __init__(self, context, assignment, replace):
        """
        Make the process; it is not started.

        Args:
            context: Of multiprocessing, the one that starts the workers.
            assignment: What any of the workers is started with.
            replace: A function of a module, to be called in each replacement with the assignment,
                the worker's id and the progress of the dead worker.
        """
        near_end, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = _Line(fileno=near_end.detach())
        self._line.setblocking(False)
        self._mailbox = bytearray(_NOBODY)
        self._children: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
        self._count = 0
        self.is_lost = False
        # Under fork this end comes along; while it is open there, its closing here is not seen.
        inherited = self._line if context.get_start_method() == "fork" else None
        sealed = _Sealed(assignment)
        self.process = context.Process(
            target=nursery_process.run,
            args=(
                assignment.trainer,
                sealed,
                replace,
                assignment.signal_mask,
                self._far_end,
                inherited,
            ),
            daemon=True,
        )

    def start(self):
        """Start the process."""
        with self._far_end:
            processes.start(self.process)

    def is_alive(self):
        """Whether the process runs."""
        return self.process.is_alive()

    def join(self, timeout=None):
        """Wait for its end, at most timeout seconds."""
        if self.process.ident is not None:
            self.process.join(timeout)

    def terminate(self):
        """Hang up: it ends its children and then itself, and hears no signal."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def kill(self):
        """End it at once, and leave its children to the trainer."""
        if self.is_alive():
            self.process.kill()

    def replacement(self, worker_id, progress):
        """Make a worker that takes the place of one that was reaped; it is not started."""
        number = self._count
        self._count += 1
        child = Replacement(self, number, worker_id, progress)
        self._children[number] = child
        return child

    def order(self, number, worker_id, letter):
        """
        Have a replacement started; whether the order was sent.

        Raises:
            OSError: There is no file left, or no memory, for what it is told.
        """
        with open(os.memfd_create("shmloader-progress", os.MFD_CLOEXEC), "wb") as file:
            file.write(letter)
            file.seek(0)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file.fileno()]))]
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._line.sendmsg([ORDER.pack(number, worker_id)], rights, socket.MSG_NOSIGNAL)
                return True
        return False

    def hear(self, timeout_s=0.0):
        """Take up what was reported; waits at most timeout_s seconds for the first word."""
        self._read_mailbox()
        while not self.is_lost and connections.wait([self._line], timeout_s):
            self.is_lost = not self._take_report()
            self._read_mailbox()
            timeout_s = 0.0

    def _take_report(self):
        """Whether there was one, and not the end of all."""
        try:
            return self._line.recv_into(self._mailbox) > 0
        except (BlockingIOError, ConnectionResetError):
            # The second is said once, before the reports, if an order was never read.
            return True

    def _read_mailbox(self):
        number, pid, code = REPORT.unpack(self._mailbox)
        child = self._children.get(number)
        if child is not None:
            child.note(pid, code)

    def hear_until(self, is_enough, timeout_s):
        """Take up what is reported until that is enough, or until timeout_s seconds have passed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.hear()
        while not is_enough():
            left_s = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return
            if self.is_lost:
                time.sleep(min(left_s, _SLICE_S))
            else:
                self.hear(min(left_s, _SLICE_S))

    def close(self):
        """
        End the process and every replacement of which it knows.

        Returns:
            Whether all that run still are known.
        """
        if self._count > 0:
            self.terminate()
            self.join(_END_S)
        self.kill()
        self.join()
        self._far_end.close()
        self.hear_until(lambda: self.is_lost, _END_S)
        were_heard, self.is_lost = self.is_lost, True
        self._line.close()
        return were_heard


class _Sealed:
    """Something on its way to another process; if it is pickled for that, it is so till opened."""

    def __init__(self, content):
        self._content = content
        self._pickled = None

    def __getstate__(self):
        return None, bytes(ForkingPickler.dumps(self._content))

    def __setstate__(self, state):
        self._content, self._pickled = state

    def open(self):
        """What was sealed; a new one for each process that opens it."""
        return self._content if self._pickled is None else pickle.loads(self._pickled)
