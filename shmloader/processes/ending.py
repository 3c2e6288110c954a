"""
End processes together and within bounded time, and clean up where exceptions cannot reach the user.

A worker that is told to leave may be anywhere: in user code, stopped, or deaf to SIGTERM. So the
trainer waits for all of them together, then kills them; what forks workers ends by itself first.

At exit of the interpreter multiprocessing ends its daemons and waits for them without a limit.
Before that, every process that was started for a live iterator is ended here.
"""

import _thread
import contextlib
import multiprocessing.process
import os
import time
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing.util import Finalize
from typing import Any, Protocol

from shmloader.memory.account import living

# Together less than the two seconds within which all workers of a trainer that ends are gone.
LEAVE_S = 1.0  # to finish the batch in hand
_TERMINATE_S = 0.5  # for what ends by itself, or by SIGTERM
_KILL_S = 5.0  # after SIGKILL only the kernel can be waited for

_FIRST = 1 << 30  # a priority among multiprocessing's finalizers


class ProcessOwner(Protocol):
    """What has started processes that must not outlive the interpreter."""

    owner_pid: int  # of the process that started them

    def processes(self) -> list[Any]:
        """List the processes; one that only ends like a process has its process as `process`."""
        ...

    def unwatch(self) -> None:
        """Make the end of the processes no error any more."""
        ...


def join_all(processes: Iterable[Any], timeout_s: float | None) -> None:
    """Wait until all have ended, at most timeout_s seconds for all of them together, if any."""
    deadline = time.monotonic() + (timeout_s or 0.0)
    for process in processes:
        left_s = None if timeout_s is None else max(0.0, deadline - time.monotonic())
        process.join(timeout=left_s)


def end_all(processes: Sequence[Any]) -> None:
    """End the processes that still run, even those that are stopped or deaf to SIGTERM."""
    try:
        for process in _running(processes):
            process.terminate()
        join_all(processes, _TERMINATE_S)
    finally:
        # Even after an interrupt: an impatient user must not have to wait for more.
        for process in _running(processes):
            process.kill()
        join_all(processes, _KILL_S)


def _running(processes: Iterable[Any]) -> list[Any]:
    return [process for process in processes if process.is_alive()]


class _Exit:
    def __init__(self) -> None:
        self.has_begun = False
        self._owners: weakref.WeakValueDictionary[int, ProcessOwner] = weakref.WeakValueDictionary()
        self._pid: int | None = None

    def add(self, owner: ProcessOwner) -> None:
        self._owners[id(owner)] = owner
        if self._pid != os.getpid():
            self._pid = os.getpid()
            # Called in this process alone, at the end of multiprocessing's own children too.
            Finalize(None, self._begin, exitpriority=_FIRST)

    def _begin(self) -> None:
        self.has_begun = True
        owners = [owner for owner in living(self._owners) if owner.owner_pid == self._pid]
        with contextlib.suppress(KeyboardInterrupt):  # the process is already ending
            for owner in owners:
                owner.unwatch()
            end_all([process for owner in owners for process in owner.processes()])

    def disown(self) -> None:
        children: set[Any] = getattr(multiprocessing.process, "_children", set())
        for owner in living(self._owners):
            children.difference_update(getattr(each, "process", each) for each in owner.processes())


_exit = _Exit()
# A child that was forked by user code must leave its parent's workers alone when it ends.
os.register_at_fork(after_in_child=_exit.disown)


def end_at_exit(owner: ProcessOwner) -> None:
    """End an owner's processes when the interpreter exits, if the owner is still alive then."""
    _exit.add(owner)


def exit_has_begun() -> bool:
    """Returns True from the moment at which the interpreter exits, and the workers with it."""
    return _exit.has_begun


class InterruptLater:
    """
    Raises KeyboardInterrupt when it is dropped: an object's last attribute, after its cleanup.

    Dropping it runs no Python, so the interrupt arrives in the code that dropped the object.
    """

    __del__ = staticmethod(_thread.interrupt_main)
