"""
The trainer's side of the nursery, the processes that fork replacements of dead workers.

An interrupt may come between any two lines. An order is one datagram, sent by one call. An order
that may not have been sent, or that a dying nursery may have taken, is sent again, and at most one
process obeys it. What came of it stands in the roll, where it is read again if need be.
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
from shmloader.processes.nursery_process import NEWS, ORDER, Replace
from shmloader.processes.roll import RECORD_BYTES, Event, Record, Roll
from shmloader.processes.watching import ParentWatch

_SLICE_S = 0.02  # between two looks for processes whose end is not noted
_PATIENCE_S = 5.0  # to wait for a pid: the nursery may still be starting
_NOTE_S = 0.1  # to wait for the exit code of a process that has ended
_END_S = 0.3  # for the nursery to end its children, before it is killed
_KILL_S = 5.0  # after SIGKILL only the kernel can be waited for


class Spec(Protocol):
    """What a worker is started with, as far as the nursery has to know it."""

    @property
    def parent(self) -> ParentWatch:
        """The watch of the trainer; workers that open the spec watch from then on."""
        ...

    @property
    def signal_mask(self) -> set[int]:
        """The signals that workers block."""
        ...


class Replacement:
    """
    A worker that the nursery starts, with that part of a Process's interface that is used here.

    Attributes:
        exitcode: As a Process has it; an errno if it could not be started; None while it runs, or
            if its parent died before it was reaped.
        ident: Its pid, as far as it was noted.
    """

    daemon = True

    def __init__(self, nursery: "Nursery", number: int, worker_id: int, progress: Any) -> None:
        self._nursery = nursery
        self._order = (number, worker_id, pickle.dumps(progress))
        self._since: int | None = None  # where it is not claimed yet, once it was ordered
        self._taker: int | None = None  # the turn of the nursery that it was ordered from
        self._asked: Any = None  # the last signal to be sent to it
        self._seen_ended_s: float | None = None
        self._started: str | None = None
        self.name = f"Replacement-{number} of worker {worker_id}"
        self.exitcode: int | None = None
        self.ident: Any = None

    def start(self) -> None:
        """Order it, unless that was surely done; however often it is ordered, it starts once."""
        turn = self._nursery.turn
        if self.ident is not None or self.is_over or self._taker == turn:
            return
        if self._since is None:
            self._since = self._nursery.roll_end
        try:
            if self._nursery.order(*self._order, self._since):
                self._taker = turn
        except OSError as error:
            self.exitcode = error.errno

    def note(self, record: Record) -> None:
        """Take in a record of its order; only the first one counts, and it may come again."""
        if self.ident is not None or self.exitcode is not None:
            return
        if record.event == Event.FAILED:
            self.exitcode = record.code
            return
        self._started = record.start_time
        self.ident = record.pid
        self._send()

    def note_end(self, record: Record) -> None:
        """Take in the end of a process, which may be this one."""
        if record.pid == self.ident and self.exitcode is None:
            self.exitcode = record.code

    @property
    def pid(self) -> int | None:
        """Its process; None if it could not be started, or nothing was noted in time."""
        self._nursery.read_until(lambda: self.ident is not None or self.is_over, _PATIENCE_S)
        pid: int | None = self.ident
        return pid

    @property
    def is_over(self) -> bool:
        """True if it has ended, or never will begin, as far as is known."""
        if self.exitcode is not None:
            return True
        if self.ident is None:
            # Each replacement is noted before it closes the nursery's endpoint, and the nursery
            # is lost when no process has that endpoint any more.
            return self._nursery.is_lost
        return not self._runs() and self._code_is_final()

    def _code_is_final(self) -> bool:
        """Returns True if no exit code is to be waited for: its parent may be dead or stopped."""
        self.exitcode = watching.reap(self.ident, self._started)
        if self._seen_ended_s is None:
            self._seen_ended_s = time.monotonic()
        if self.exitcode is not None or self._nursery.is_lost or self._asked is not None:
            return True
        return time.monotonic() - self._seen_ended_s > _NOTE_S

    def _runs(self) -> bool:
        return watching.is_running(self.ident, self._started)

    def is_alive(self) -> bool:
        """Returns True if it runs, or is about to."""
        self.start()
        self._nursery.read()
        return not self.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most timeout seconds."""
        self.start()  # without an order it would never be over
        self._nursery.read_until(lambda: self.is_over, timeout)

    def kill(self) -> None:
        """Kill it, together with the nursery if it is not noted which process it is."""
        self._asked = signal.SIGKILL
        self._nursery.read_until(lambda: self.ident is not None or self.is_over, _SLICE_S)
        if self.ident is None and not self.is_over:
            self._nursery.kill()
        self._send()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._asked = signal.SIGTERM
        self._nursery.read()
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
        process: The nursery's first process. It forks a second one, and each forks another one
            when the other is gone.
        turn: Changes whenever another process takes the orders.
        is_lost: True if all of them are gone. Their replacements run on.
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
        self._news = bytearray(NEWS)
        self._roll = Roll()
        self._read_bytes = 0  # of the roll
        self._known: dict[int, str | None] = {}  # pid -> start time of the nursery's processes
        self.turn = self._ordered_from = 0
        self._children: weakref.WeakValueDictionary[int, Replacement]
        self._children = weakref.WeakValueDictionary()
        self._count = 0
        self.is_lost = False
        # Under fork the nursery inherits this endpoint; while it has it, it would see no EOF.
        inherited = self._channel if context.get_start_method() == "fork" else None
        self.process = context.Process(
            target=nursery_process.run,
            args=(
                *((spec.parent.pid, spec.parent.started), _Sealed(spec), replace, spec.signal_mask),
                *(self._far_end, inherited, self._roll),
            ),
            daemon=True,
        )

    def start(self) -> None:
        """Start the process."""
        with self._far_end:
            starting.start(self.process)

    @property
    def pids(self) -> list[int]:
        """The processes of the nursery that run, as far as they are noted."""
        self.read()
        return [pid for pid, started in self._known.items() if watching.is_running(pid, started)]

    def is_alive(self) -> bool:
        """Returns True if any of the processes runs."""
        is_first_alive = self.process.is_alive()
        return bool(self.pids or is_first_alive) and not self.is_lost

    def join(self, timeout: float | None = None) -> None:
        """Wait until they have ended, at most timeout seconds."""
        if self.process.ident is not None:
            self.read_until(lambda: not self.is_alive(), timeout)

    def terminate(self) -> None:
        """Close the channel for orders: the nursery ends its children and then itself."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it, and leave its children to the trainer."""
        self.terminate()  # whatever it forks meanwhile ends by itself
        if self.process.is_alive():
            self.process.kill()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def replacement(self, worker_id: int, progress: Any) -> Replacement:
        """Make a worker instead of a reaped one; it is not started."""
        number = self._count
        self._count += 1
        child = Replacement(self, number, worker_id, progress)
        self._children[number] = child
        return child

    @property
    def roll_end(self) -> int:
        """The place in the roll where the next record will stand."""
        return self._roll.end

    def order(self, number: int, worker_id: int, progress: bytes, since: int) -> bool:
        """
        Have a replacement started. Returns True if the order was sent.

        Args:
            since: A place in the roll before which it is not claimed.

        Raises:
            OSError: There is no descriptor left, or no memory, for the progress.
        """
        with open(os.memfd_create("shmloader-progress", os.MFD_CLOEXEC), "wb") as file:
            file.write(progress)
            file.seek(0)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file.fileno()]))]
            order = ORDER.pack(number, worker_id, since)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._channel.sendmsg([order], rights, socket.MSG_NOSIGNAL)
                return True
        return False

    def read(self, timeout_s: float | None = 0.0) -> None:
        """Read the news; waits at most timeout_s seconds for the first one."""
        self._read_roll()
        while not self.is_lost and connections.wait([self._channel], timeout_s):
            self.is_lost = not self._receive()
            self._read_roll()
            timeout_s = 0.0

    def _receive(self) -> bool:
        """Receive what wakes the trainer. Returns False at EOF."""
        try:
            return self._channel.recv_into(self._news) > 0
        except (BlockingIOError, ConnectionResetError):
            # The kernel says the second once, before the news, if an order was never read.
            return True

    def _read_roll(self) -> None:
        for record in self._roll.read(self._read_bytes):
            self._note(record)
            self._read_bytes += RECORD_BYTES
        if self._ordered_from != self.turn:
            # The process that has read an order may have died of it.
            turn = self.turn
            for child in list(self._children.values()):
                child.start()
            self._ordered_from = turn

    def _note(self, record: Record) -> None:
        """Take in a record; the same one may come again."""
        if record.event == Event.JOINED:
            self._join(record)
        elif record.event == Event.ACTIVE:
            self.turn = self._read_bytes + RECORD_BYTES
        elif record.event == Event.ENDED:
            for child in list(self._children.values()):
                child.note_end(record)
        elif record.number in self._children:
            self._children[record.number].note(record)

    def _join(self, record: Record) -> None:
        self._reap()
        known = {**self._known, record.pid: record.start_time}
        self._known = {pid: known[pid] for pid in known if watching.is_running(pid, known[pid])}

    def _reap(self) -> None:
        """Reap processes of the nursery that are children here, such as orphans in a container."""
        self.process.is_alive()
        for pid, started in self._known.items():
            watching.reap(pid, started)

    def read_until(self, is_enough: Callable[[], bool], timeout_s: float | None) -> None:
        """Read the news until is_enough() is true, or timeout_s seconds have passed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.read()
        while not is_enough():
            left_s = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return
            if self.is_lost:
                time.sleep(min(left_s, _SLICE_S))
            else:
                self.read(min(left_s, _SLICE_S))

    def close(self) -> bool:
        """
        End the processes and all of their replacements.

        Returns:
            True if every replacement that still runs is known here.
        """
        self.terminate()
        if self._count > 0:
            self.join(_END_S)
        deadline = time.monotonic() + _KILL_S
        while self.is_alive() and time.monotonic() < deadline:
            self.kill()
            self.join(_SLICE_S)
        if self.process.ident is not None:
            self.process.join(max(0.0, deadline - time.monotonic()))
        self._far_end.close()
        self.read_until(lambda: self.is_lost, _END_S)
        # They close their endpoints some time before they are zombies.
        self.read_until(lambda: not self.pids, _END_S)
        self._reap()
        was_at_eof, self.is_lost = self.is_lost, True
        self._channel.close()
        self._roll.close()
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
