"""
The nursery's process, which forks replacements of dead workers.

A replacement has to begin with the dataset as it was when the iterator was made, and the trainer's
own dataset may have changed since. So one more process is started beside the workers, in the same
way; it keeps what they were given and forks a worker for each order. It touches nothing else: no
slot, no ring, no dataset. A dataset that arrives pickled is unpickled by each replacement.

It may be killed like any other process, at any line: what it did for an order stands in the file
that came with the order (`birth`), and its children need it for nothing but their exit codes.
"""

import contextlib
import errno
import functools
import os
import pickle
import select
import signal
import socket
import struct
import warnings
from collections.abc import Callable
from multiprocessing import connection as connections
from multiprocessing import context, util
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shmloader.processes.birth import Birth, Event, close_inherited
from shmloader.processes.watching import Watch, start_time

ORDER = struct.Struct("<q")  # bytes of a birth's content; its file comes along
_NAME, _NAME_OF_NEWBORNS = "shm_nursery", "shm_newborn"  # at most 15 bytes
_FOR_WORKERS = signal.valid_signals() - {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP),
}
_PAUSE_S = 0.2  # after a fork that failed: the next order may come at once

# Be a replacement: called with what workers are started with, the worker id and the progress.
Replace = Callable[[Any, int, Any], None]


class Sealed:
    """Content on its way to another process; once pickled on that way, it stays so until opened."""

    def __init__(self, content: Any) -> None:
        """Hold the content itself."""
        self._content = content
        self._pickled: bytes | None = None

    def __getstate__(self) -> tuple[None, bytes]:
        return None, bytes(ForkingPickler.dumps(self._content))

    def __setstate__(self, state: tuple[None, bytes]) -> None:
        self._content, self._pickled = state

    def open(self) -> Any:
        """Return the content; a new one for each process that unpickles it."""
        return self._content if self._pickled is None else pickle.loads(self._pickled)


def run(
    trainer: tuple[int, str | None],
    sealed: Sealed,
    replace: Replace,
    signal_mask: set[int],
    channel: socket.socket,
    trainers_endpoint: socket.socket | None,
) -> None:
    """
    Be the nursery until the trainer shuts the channel down, or dies.

    Args:
        trainer: The trainer's pid and start time.
        sealed: What workers are started with; opened, it watches the trainer.
        replace: Called in each replacement.
        signal_mask: The signals that workers block.
        channel: This side's endpoint, at which orders come in.
        trainers_endpoint: The other endpoint if it came along by a fork; otherwise None.

    Raises:
        SystemExit: This process is out of something; its exit code is the errno.
    """
    # Signals to the process group are meant for the workers; this process must survive them to
    # replace the workers.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    # Where the trainer ignores it, the kernel would reap, and no exit code be known.
    handlers: dict[int, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL)}
    if trainers_endpoint is not None:
        trainers_endpoint.close()
        close_inherited()
    else:
        # This process has imported libraries, and their threads do not block signals.
        handlers |= {each: signal.signal(each, signal.SIG_IGN) for each in _FOR_WORKERS}
    _show_name(_NAME)
    try:
        _Server(Watch(*trainer), sealed, replace, signal_mask, channel, handlers).serve()
    except OSError as error:
        raise SystemExit(error.errno or errno.EIO) from error


def _show_name(name: str) -> None:
    """Let ps and its like show a name for this process, where that can be."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name)


def fork_into(target: Callable[[], None], name: str, sentinel: int) -> int:
    """
    Fork a daemon of multiprocessing, which nothing but its pid stands for in this process.

    Args:
        target: Called in the child, which ends afterwards.
        name: Of the child.
        sentinel: A descriptor that becomes readable when the child has no parent any more.
    """
    child: Any = context.ForkProcess(target=target, name=name, daemon=True)
    util._flush_std_streams()  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        # Of forks beside a thread, since Python 3.12: threads of ours run no Python.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = child._bootstrap(parent_sentinel=sentinel)
        finally:
            os._exit(code)
    return pid


class _Server:
    def __init__(
        self,
        trainer: Watch,
        sealed: Sealed,
        replace: Replace,
        signal_mask: set[int],
        channel: socket.socket,
        handlers: dict[int, Any],
    ) -> None:
        self._trainer = trainer
        self._sealed = sealed
        self._replace = replace
        self._signal_mask = signal_mask
        self._channel = channel
        self._handlers = handlers  # of signals, as workers have them; None: not set from Python
        self._children: dict[Watch, Birth] = {}
        self._sentinel, self._life = os.pipe()  # what it says to replacements, and our end

    def serve(self) -> None:
        """Start replacements on order and note their ends, until EOF."""
        is_open = True
        while is_open and not self._trainer.has_ended:
            watches = [self._trainer, *self._children]
            descriptors = [each for watch in watches for each in watch.descriptors]
            patience_s = min((w.patience_s for w in watches if w.patience_s), default=None)
            ready = connections.wait([*descriptors, self._channel.fileno()], patience_s)
            for child in list(self._children):
                self._reap(child, os.WNOHANG)
            if self._channel.fileno() in ready:
                is_open = self._obey()
        # Where nothing reaps orphans they would stay zombies.
        for child in self._children:
            os.kill(child.pid, signal.SIGKILL)
        for child in list(self._children):
            self._reap(child, 0)

    def _reap(self, child: Watch, flags: int) -> None:
        """Note the end of a child, if it has ended."""
        reaped, status = os.waitpid(child.pid, flags)
        if reaped:
            with self._children.pop(child) as birth:
                birth.add(Event.ENDED, child.pid, os.waitstatus_to_exitcode(status))
            child.close()

    def _obey(self) -> bool:
        """Take one order. Returns False at EOF."""
        order, descriptors, _, _ = socket.recv_fds(self._channel, ORDER.size, 1)
        if not order:
            return False
        if not descriptors:
            raise OSError(errno.EMFILE, "no descriptor is left for the file of an order")
        birth = Birth(descriptors[0], *ORDER.unpack(order))
        try:
            pid = fork_into(
                functools.partial(self._be_worker, birth), "Replacement", self._sentinel
            )
        except OSError as error:
            select.poll().poll(1000 * _PAUSE_S)  # not by time.sleep(), which may be refused
            birth.add(Event.FAILED, code=error.errno or errno.EAGAIN)
        else:
            self._children[Watch(pid, start_time(pid))] = birth
            # Said by both: either may be killed, or stopped, before it has said it.
            birth.add(Event.BORN, pid)
        return True

    def _be_worker(self, birth: Birth) -> None:
        _show_name(_NAME_OF_NEWBORNS)
        if not birth.claim():
            # A process that was forked earlier for the same order is the worker, or none is wanted.
            return
        self._leave()
        for each, handler in self._handlers.items():
            if handler is not None:
                signal.signal(each, handler)
        # Like a worker that starts: SIGINT is unblocked once the process can keep quiet about it.
        signal.pthread_sigmask(signal.SIG_SETMASK, {*self._signal_mask, signal.SIGINT})
        worker_id, progress = pickle.loads(birth.content())
        birth.close()
        self._replace(self._sealed.open(), worker_id, progress)

    def _leave(self) -> None:
        """Close what belongs to the nursery."""
        self._channel.close()
        os.close(self._life)
        for watch in (self._trainer, *self._children):
            watch.close()
        for birth in self._children.values():
            birth.close()
