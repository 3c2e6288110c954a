"""
The nursery: the process that forks replacements of dead workers.

A replacement has to begin with the dataset as it was when the iterator was made, and the trainer's
own dataset may have changed since. So one more process is started beside the workers, in the same
way; it keeps what they were given and forks a worker for each order. It touches nothing else: no
slot, no ring, no dataset. A dataset that arrives pickled is unpickled by each replacement.
"""

import contextlib
import errno
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable
from io import BufferedReader
from multiprocessing import connection as connections
from multiprocessing import context, popen_fork, util
from typing import Any, NoReturn, Protocol

from shmloader.memory import forks
from shmloader.processes.watching import ParentWatch

ORDER = struct.Struct("<2q")  # number, worker id; a file with the pickled progress comes along
REPORT = struct.Struct("<3q")  # number, pid or 0, exit code or RUNS; an errno if there is no pid
RUNS = 1 << 32  # no process exits with this code
_UNKNOWN = 255  # exit code of a child that something else in this process reaped
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
    parent: ParentWatch,
    sealed: Sealed,
    replace: Replace,
    signal_mask: set[int],
    channel: socket.socket,
    trainers_endpoint: socket.socket | None,
) -> None:
    """
    Be the nursery until the trainer closes its endpoint of the channel, or dies.

    Args:
        parent: The watch of the trainer, whose end ends this process.
        sealed: What workers are started with.
        replace: Called in each replacement.
        signal_mask: The signals that workers block.
        channel: This process's endpoint: orders come in, reports go out, a datagram each.
        trainers_endpoint: The other endpoint if it came along by a fork; otherwise None.
    """
    # Signals to the process group are meant for the workers; this process must survive them to
    # replace the workers.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    handlers: dict[int, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL)}
    if trainers_endpoint is not None:
        trainers_endpoint.close()
    else:
        # This process has imported libraries, and their threads do not block signals.
        handlers |= {each: signal.signal(each, signal.SIG_IGN) for each in _FOR_WORKERS}
    parent.watch()
    # multiprocessing refuses children to daemons, because it would not end them. These watch the
    # trainer themselves, and are daemons again.
    this: Any = multiprocessing.current_process()
    this._config["daemon"] = False
    _Server(parent, sealed, replace, signal_mask, channel, handlers).serve()


class _Server:
    def __init__(
        self,
        parent: ParentWatch,
        sealed: Sealed,
        replace: Replace,
        signal_mask: set[int],
        channel: socket.socket,
        handlers: dict[int, Any],
    ) -> None:
        self._parent = parent
        self._sealed = sealed
        self._replace = replace
        self._signal_mask = signal_mask
        self._channel = channel
        self._handlers = handlers  # of signals, as workers have them; None: not set from Python
        self._children: dict[int, _Child] = {}  # by number of the order
        self._newest: dict[int, int] = {}  # worker id -> number of the newest order for it

    def serve(self) -> None:
        """Start replacements on order and report their ends, until EOF."""
        is_open = True
        while is_open:
            numbers: dict[Any, int]
            numbers = {child.sentinel: number for number, child in self._children.items()}
            ready = connections.wait([self._channel, *numbers])
            for sentinel in numbers.keys() & set(ready):
                self._reap(numbers[sentinel])
            if self._channel in ready:
                is_open = self._obey()
        for child in self._children.values():
            child.kill()
        for number in list(self._children):
            self._reap(number)

    def _obey(self) -> bool:
        """Take one order. Returns False at EOF."""
        try:
            order, descriptors, _, _ = socket.recv_fds(self._channel, ORDER.size, 1)
        except ConnectionResetError:
            # The trainer closed, or died, with reports unread: that is EOF too.
            return False
        if not order:
            return False
        number, worker_id = ORDER.unpack(order)
        if not descriptors:
            self._report(number, 0, errno.EMFILE)
            return True
        with open(descriptors[0], "rb") as progress_file:
            # An order may come twice, if an interrupt hid from the trainer that it was sent.
            if number > self._newest.get(worker_id, -1):
                self._newest[worker_id] = number
                self._start(number, worker_id, progress_file)
        return True

    def _start(self, number: int, worker_id: int, progress_file: BufferedReader) -> None:
        child = _Child(
            target=self._be_worker,
            args=(number, worker_id, progress_file),
            name=f"Replacement-{number}",
            daemon=True,
        )
        try:
            with forks.ours():
                child.start()
        except OSError as error:
            time.sleep(_PAUSE_S)
            self._report(number, 0, error.errno or errno.EAGAIN)
        else:
            self._children[number] = child
            # Reported by both: either may be killed, or stopped, before its report.
            self._report(number, child.pid or 0, RUNS)

    def _reap(self, number: int) -> None:
        child = self._children.pop(number)
        child.join()
        self._report(number, child.pid or 0, _UNKNOWN if child.exitcode is None else child.exitcode)

    def _report(self, number: int, pid: int, code: int) -> None:
        # A trainer that no longer reads is gone, or about to close its endpoint.
        with contextlib.suppress(OSError):
            self._channel.send(REPORT.pack(number, pid, code), socket.MSG_NOSIGNAL)

    def _be_worker(self, number: int, worker_id: int, progress_file: BufferedReader) -> None:
        self._parent.watch()
        self._report(number, os.getpid(), RUNS)
        self._channel.close()
        for each, handler in self._handlers.items():
            if handler is not None:
                signal.signal(each, handler)
        # Like a worker that starts: SIGINT is unblocked once the process can keep quiet about it.
        signal.pthread_sigmask(signal.SIG_SETMASK, {*self._signal_mask, signal.SIGINT})
        with progress_file:
            progress = pickle.load(progress_file)
        self._replace(self._sealed.open(), worker_id, progress)


class _Child(context.ForkProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> "_Fork":
        return _Fork(process_obj)


class _Fork(popen_fork.Popen):
    """How multiprocessing forks, but without leaving a pipe open if the fork fails."""

    def _launch(self, process_obj: Any) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self.sentinel, _ = _pipe(ours, theirs)
            parent_sentinel, _ = _pipe(theirs, ours)
            with warnings.catch_warnings():
                # Of forks beside a thread, since Python 3.12: the thread here runs no Python.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
            if self.pid == 0:
                ours.close()
                _be_child(process_obj, parent_sentinel)
            self.finalizer = util.Finalize(self, ours.pop_all().close)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Make a pipe; each end is closed with the stack of its owner."""
    ends = os.pipe()
    for end, owner in zip(ends, (reader, writer), strict=True):
        owner.callback(os.close, end)
    return ends


def _be_child(process_obj: Any, parent_sentinel: int) -> NoReturn:
    code = 1
    try:
        code = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    finally:
        os._exit(code)
