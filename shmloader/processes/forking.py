"""
Fork workers on order and note their ends: what the nursery's process and a preloaded server share.

An order is a message on a channel, with the file of a birth (`birth`) and whatever else the new
process is to have open. Such a process may be killed like any other one, at any line: what it did
for an order stands in the file that came with the order, and its children need it for nothing but
their exit codes.
"""

import atexit
import contextlib
import errno
import functools
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable
from multiprocessing import util
from typing import Any

from shmloader.core import Descriptor, poll
from shmloader.processes import exits
from shmloader.processes.birth import Birth, Event
from shmloader.processes.channel import Channel
from shmloader.processes.proc import wait_for_child
from shmloader.processes.signals import Signals
from shmloader.processes.watching import Watch, start_time

ORDER = struct.Struct("<2q")  # bytes of a birth's content; how many descriptors come along
MOST_DESCRIPTORS = 253  # the kernel has no more in a message
_NAME_OF_NEWBORNS = "shm_newborn"  # at most 15 bytes
_FOR_WORKERS = signal.valid_signals() - {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP),
}
_PAUSE_S = 0.2  # after a fork that failed: the next order may come at once

# Be a worker, in a child: called with what the order brought; returns the exit code.
Be = Callable[[Birth, list[int]], int]


def show_name(name: str) -> None:
    """Let ps and its like show a name for this process, where that can be."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name)


def be_deaf(ignores: bool) -> dict[int, Any]:
    """
    Survive the signals that are meant for workers, in order to start other ones.

    Args:
        ignores: Ignore them too, because threads of libraries do not block them.

    Returns:
        The handlers of signals as workers have them; None: not set from Python.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    # Where the trainer ignores it, the kernel would reap, and no exit code be known.
    handlers: dict[int, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL)}
    if ignores:
        handlers |= {each: signal.signal(each, signal.SIG_IGN) for each in _FOR_WORKERS}
    return handlers


def hear_again(handlers: dict[int, Any], signals: Signals) -> None:
    """Take back what `be_deaf` did; SIGINT stays blocked until a worker can keep quiet about it."""
    for each, handler in handlers.items():
        if handler is not None:
            signal.signal(each, handler)
    signals.leave()
    signal.pthread_sigmask(signal.SIG_SETMASK, {*signals.mask, signal.SIGINT})


def fork_into(be: Callable[[], int]) -> int:
    """Fork a process, which ends with the exit code that the call returns there."""
    util._flush_std_streams()  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        # Of forks beside a thread, since Python 3.12: threads of ours run no Python.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = be()
        except Exception:
            sys.excepthook(*sys.exc_info())
            util._flush_std_streams()  # type: ignore[attr-defined]
        finally:
            os._exit(code)
    return pid


def bootstrap(process: Any, sentinel: int | None) -> int:
    """
    Run a process of multiprocessing that was forked here. Returns the exit code.

    Since Python 3.13 who forks it runs its exit handlers, multiprocessing's finalizers among them:
    without these, what it last put into a queue would be lost.
    """
    if sys.version_info >= (3, 13):
        atexit._clear()
        atexit.register(util._exit_function)  # type: ignore[attr-defined]
    else:
        process.run = functools.partial(exits.run_to_the_end, process.run)
    try:
        code: int = process._bootstrap(parent_sentinel=sentinel)
    finally:
        if sys.version_info >= (3, 13):
            atexit._run_exitfuncs()
            util._flush_std_streams()  # type: ignore[attr-defined]
    return code


class Forks:
    """
    Serves a trainer's channel: forks a worker for each order, and notes the ends of all.

    It ends with the trainer. `be` is called in each child whose birth is its own.
    """

    def __init__(self, trainer: Watch, channel: Channel, be: Be) -> None:
        self._trainer = trainer
        self._channel = channel
        self._be = be
        self._children: dict[Watch, Birth] = {}

    def serve(self) -> None:
        """Start workers on order and note their ends, until EOF."""
        is_open = True
        while is_open and not self._trainer.has_ended:
            watches = [self._trainer, *self._children]
            descriptors = [each for watch in watches for each in watch.descriptors]
            patience_s = min((w.patience_s for w in watches if w.patience_s), default=None)
            ready = poll([*descriptors, self._channel], patience_s)
            for child in list(self._children):
                self._reap(child, os.WNOHANG)
            if self._channel in ready:
                is_open = self._obey()
        # Where nothing reaps orphans they would stay zombies.
        for child in self._children:
            os.kill(child.pid, signal.SIGKILL)
        for child in list(self._children):
            self._reap(child, 0)

    def _reap(self, child: Watch, flags: int) -> None:
        """Note the end of a child, if it has ended."""
        reaped, status = wait_for_child(child.pid, flags)
        if reaped:
            with self._children.pop(child) as birth:
                birth.add(Event.ENDED, child.pid, os.waitstatus_to_exitcode(status))
            child.close()

    def _obey(self) -> bool:
        """Take one order. Returns False at EOF."""
        order, descriptors = self._channel.hear(ORDER.size, MOST_DESCRIPTORS)
        if not order:
            return False
        content_bytes, count = ORDER.unpack(order)
        if len(descriptors) < count:
            raise OSError(errno.EMFILE, "no descriptor is left for the files of a request")
        birth, *others = descriptors
        try:
            self._bear(Birth(Descriptor(birth), content_bytes), others)
        finally:
            for each in others:
                os.close(each)
        return True

    def _bear(self, birth: Birth, others: list[int]) -> None:
        try:
            pid = fork_into(lambda: self._be_born(birth, others))
        except OSError as error:
            poll((), _PAUSE_S)  # not by time.sleep(), which may be refused
            birth.add(Event.FAILED, code=error.errno or errno.EAGAIN)
        else:
            self._children[Watch(pid, start_time(pid))] = birth
            # Said by both: either may be killed, or stopped, before it has said it.
            birth.add(Event.BORN, pid)

    def _be_born(self, birth: Birth, others: list[int]) -> int:
        show_name(_NAME_OF_NEWBORNS)
        if not birth.claim():
            # A process that was forked earlier for the same order is the worker, or none is wanted.
            return 0
        self._leave()
        return self._be(birth, others)

    def _leave(self) -> None:
        """Close what belongs to the parent."""
        self._channel.close()
        for watch in (self._trainer, *self._children):
            watch.close()
        for birth in self._children.values():
            birth.close()
