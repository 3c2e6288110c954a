"""
The nursery: the processes that fork replacements of dead workers.

A replacement has to begin with the dataset as it was when the iterator was made, and the trainer's
own dataset may have changed since. So one more process is started beside the workers, in the same
way; it keeps what they were given and forks a worker for each order. It touches nothing else: no
slot, no ring, no dataset. A dataset that arrives pickled is unpickled by each replacement.

Because it may be killed like any other process, it is several (`members`). What one of them has
done, the others and the trainer find in the roll; the channel brings the orders, and tells by its
end that the other side is gone.
"""

import contextlib
import errno
import functools
import os
import pickle
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from io import BufferedReader
from typing import Any, Protocol

from shmloader.core import adopt_orphans
from shmloader.processes import forking, watching
from shmloader.processes.members import Members
from shmloader.processes.reaping import Reaper
from shmloader.processes.roll import Event, Roll
from shmloader.processes.watching import Watch

# Number, worker id, a place in the roll before which there is no claim; a file with the pickled
# progress comes along.
ORDER = struct.Struct("<3q")
NEWS = b"\0"  # a datagram that wakes the trainer
_NAME, _NAME_OF_NEWBORNS = "shm_nursery", "shm_newborn"  # at most 15 bytes
_FOR_WORKERS = signal.valid_signals() - {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP),
}
_PAUSE_S = 0.2  # after a fork that failed: the next order may come at once

# Be a replacement: called with what workers are started with, the worker id and the progress.
Replace = Callable[[Any, int, Any], None]


class Sealed(Protocol):
    """What workers are started with, on its way to the processes that open it."""

    def open(self) -> Any:
        """Unpack it, anew in each process."""
        ...


def run(
    trainer: tuple[int, str | None],
    sealed: Sealed,
    replace: Replace,
    signal_mask: set[int],
    channel: socket.socket,
    trainers_endpoint: socket.socket | None,
    roll: Roll,
) -> None:
    """
    Be the nursery until the trainer closes its endpoint of the channel, or dies.

    Args:
        trainer: The trainer's pid and start time.
        sealed: What workers are started with; opened, it watches the trainer.
        replace: Called in each replacement.
        signal_mask: The signals that workers block.
        channel: This side's endpoint: orders come in, news go out.
        trainers_endpoint: The other endpoint if it came along by a fork; otherwise None.
        roll: Where everything is noted.
    """
    # Signals to the process group are meant for the workers; this process must survive them to
    # replace the workers.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    handlers: dict[int, Any] = {}
    if trainers_endpoint is not None:
        trainers_endpoint.close()
    else:
        # This process has imported libraries, and their threads do not block signals.
        handlers |= {each: signal.signal(each, signal.SIG_IGN) for each in _FOR_WORKERS}
    _show_name(_NAME)
    first = os.getpid()
    try:
        _Server(Watch(*trainer), sealed, replace, signal_mask, channel, handlers, roll).serve()
    except Exception:
        if os.getpid() == first:
            raise
        traceback.print_exc()
        os._exit(1)
    if os.getpid() != first:
        # What is below on the stack is the end of the first process, not of its forks.
        os._exit(0)


def _show_name(name: str) -> None:
    """Let ps and its like show a name for this process, where that can be."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name)


class _Server:
    def __init__(
        self,
        trainer: Watch,
        sealed: Sealed,
        replace: Replace,
        signal_mask: set[int],
        channel: socket.socket,
        handlers: dict[int, Any],
        roll: Roll,
    ) -> None:
        self._trainer = trainer
        self._sealed = sealed
        self._replace = replace
        self._signal_mask = signal_mask
        self._channel = channel
        self._handlers = handlers  # of signals, as workers have them; None: not set from Python
        self._roll = roll
        self._newest: dict[int, int] = {}  # worker id -> number of the newest order for it
        self._is_open = True
        self._sentinel, self._life = os.pipe()  # what it says to replacements, and our end
        self._reaper = Reaper()
        self._handlers[signal.SIGCHLD] = self._reaper.handler
        self._members = Members(roll)

    def serve(self) -> None:
        """Start replacements on order and note their ends, until EOF; also in forks of itself."""
        adopt_orphans()
        while self._is_open:
            if self._members.complete():
                self._reaper.close()
                self._reaper = Reaper()
                adopt_orphans()
            self._wait()
        self._end_replacements()

    def _wait(self) -> None:
        """Wait for the next event, and see to it."""
        descriptors = [*self._trainer.descriptors, *self._members.descriptors]
        if self._members.is_active:
            descriptors.append(self._channel.fileno())
        patience_s = [self._trainer.patience_s, self._members.patience_s]
        ready = self._reaper.wait(
            descriptors, min((each for each in patience_s if each is not None), default=None)
        )
        for pid, code in self._reaper.ends():
            self._note(Event.ENDED, pid=pid, code=code)
        if self._trainer.has_ended or (self._members.look() and self._is_at_eof()):
            self._is_open = False
        elif self._channel.fileno() in ready:
            self._is_open = self._obey()

    def _is_at_eof(self) -> bool:
        """Returns True if there are no orders, and will be none: no worker need be replaced."""
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def _note(self, event: Event, number: int = 0, pid: int = 0, code: int = 0) -> None:
        self._roll.add(event, number, pid, code)
        self._tell()

    def _tell(self) -> None:
        # A trainer that no longer reads is gone, busy, or about to close its endpoint.
        with contextlib.suppress(OSError):
            self._channel.send(NEWS, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def _obey(self) -> bool:
        """Take one order. Returns False at EOF."""
        try:
            order, descriptors, _, _ = socket.recv_fds(
                self._channel, ORDER.size, 1, socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return True  # another active process has taken it
        except ConnectionResetError:
            # The trainer closed, or died, with news unread: that is EOF too.
            return False
        if not order:
            return False
        number, worker_id, since = ORDER.unpack(order)
        if not descriptors:
            self._note(Event.FAILED, number, code=errno.EMFILE)
            return True
        with open(descriptors[0], "rb") as progress_file:
            # An order may come twice, if an interrupt hid from the trainer that it was sent.
            if number > self._newest.get(worker_id, -1):
                self._newest[worker_id] = number
                self._start(number, worker_id, since, progress_file)
        return True

    def _start(
        self, number: int, worker_id: int, since: int, progress_file: BufferedReader
    ) -> None:
        be_worker = functools.partial(self._be_worker, number, worker_id, since, progress_file)
        try:
            pid = forking.fork_into(be_worker, f"Replacement-{number}", self._sentinel)
        except OSError as error:
            time.sleep(_PAUSE_S)
            self._note(Event.FAILED, number, code=error.errno or errno.EAGAIN)
        else:
            # Claimed by both: either may be killed, or stopped, before it has claimed it.
            self._note(Event.CLAIMED, number, pid)

    def _be_worker(
        self, number: int, worker_id: int, since: int, progress_file: BufferedReader
    ) -> None:
        _show_name(_NAME_OF_NEWBORNS)
        if not self._roll.claim(number, since):
            # A process that was forked earlier for the same order is the worker.
            return
        self._tell()
        self._leave()
        for each, handler in self._handlers.items():
            if handler is not None:
                signal.signal(each, handler)
        # Like a worker that starts: SIGINT is unblocked once the process can keep quiet about it.
        signal.pthread_sigmask(signal.SIG_SETMASK, {*self._signal_mask, signal.SIGINT})
        with progress_file:
            progress = pickle.load(progress_file)
        self._replace(self._sealed.open(), worker_id, progress)

    def _leave(self) -> None:
        """Close what belongs to the nursery."""
        self._channel.close()
        self._roll.close()
        self._trainer.close()
        self._members.leave()
        self._reaper.close()
        os.close(self._life)

    def _end_replacements(self) -> None:
        """Kill all replacements, and reap those that are children."""
        claims = [each for each in self._roll.read(0) if each.event == Event.CLAIMED]
        for claim in claims:
            if watching.is_running(claim.pid, claim.start_time):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(claim.pid, signal.SIGKILL)
        for pid in {claim.pid for claim in claims}:
            for code in self._reaper.end_of(pid):
                self._note(Event.ENDED, pid=pid, code=code)
