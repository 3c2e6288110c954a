"""
Signals to a whole job: one that the trainer handles, or ignores, is the trainer's alone.

A scheduler sends SIGTERM to all processes, and workers would end before the trainer has saved
anything. So a worker does nothing on what the trainer sees to. It has a handler for that, because
what a process ignores is ignored by the programs that it starts, too; a child that it forks has the
default again. From its birth until it has the handler it blocks the signal.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Self

from shmloader.processes import proc

_OF_JOBS = signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2


def handled(pid: int | None = None) -> set[int]:
    """List what a process, None: this one, handles or ignores, by native code too."""
    mask = proc.handled_signals(pid)
    of_python = {each for each in _OF_JOBS if signal.getsignal(each) != signal.SIG_DFL}
    return {each for each in _OF_JOBS if (mask >> (each - 1)) & 1} | (set() if pid else of_python)


def held_at_birth() -> set[int]:
    """List what a worker blocks when it is born: Ctrl-C, and what it leaves to this process."""
    return {signal.SIGINT, *handled()}


@dataclass
class Signals:
    """What a worker does about signals."""

    mask: set[int]  # what it blocks once it has started
    left: set[int]  # what it leaves to the trainer

    @classmethod
    def of_now(cls) -> Self:
        """Say it of workers that this thread of the trainer starts."""
        return cls({*signal.pthread_sigmask(signal.SIG_BLOCK, ())}, handled())

    def leave(self) -> None:
        """Do nothing on them from now on, and block them no more."""
        signal.set_wakeup_fd(-1)  # a forked worker has the trainer's, which would hear it again
        _do_nothing_on(self.left)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.left - self.mask)

    def leave_after(self, set_handlers: Callable[[], None]) -> None:
        """Do so although a call, such as torch's, sets handlers."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self.left)
        set_handlers()
        self.leave()

    def follow(self, trainer: int) -> None:
        """Leave to the trainer what it has come to handle, but for what user code handles here."""
        new = handled(trainer) - self.left
        self.left |= new
        _do_nothing_on(filter(_is_free, new))


def _do_nothing_on(numbers: Iterable[int]) -> None:
    for number in numbers:
        # Under nohup programs that a worker starts ignore SIGHUP, as those of the trainer do.
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            _mind_forks()
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)  # native code may not expect EINTR


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _is_free(number: int) -> bool:
    """Returns True if no user code has set a handler here; that of SIGTERM may be torch's."""
    is_default = signal.getsignal(number) == signal.SIG_DFL
    return is_default and (number == signal.SIGTERM or number not in handled())


class _Fork(threading.local):
    """A fork in a worker: what comes for the child before it has the defaults waits for them."""

    _mask: set[int] | None = None

    def begin(self) -> None:
        if any(map(_is_left, _OF_JOBS)):
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_JOBS)

    def end(self) -> None:
        mask, self._mask = self._mask, None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def end_in_child(self) -> None:
        for number in filter(_is_left, _OF_JOBS):
            signal.signal(number, signal.SIG_DFL)
        self.end()


def _is_left(number: int) -> bool:
    return signal.getsignal(number) is _do_nothing


@cache
def _mind_forks() -> None:
    """From now on, in a worker: in the trainer a hook would lose an interrupt that comes then."""
    fork = _Fork()
    os.register_at_fork(
        before=fork.begin, after_in_parent=fork.end, after_in_child=fork.end_in_child
    )
