"""Know a process by its pid and start time, see that it still runs, and end with it."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from shmloader.core import Descriptor, poll, watch_process
from shmloader.processes import proc, victims

_THREADS, _STARTED = 17, 19  # in what _stat() returns
_watched: dict[int, int] = {}  # process -> the process in which a thread watches it
_LOOK_AGAIN_S = 0.05  # where the kernel does not tell of an end
_LOOK_S = 0.005  # between two looks while a process is waited for


def _stat(pid: int) -> list[str] | None:
    """
    The kernel's record of a process, from its state on; empty if there is no such process.

    None if it cannot be read: this process may be out of descriptors or memory for a moment, or
    see the /proc of another namespace.
    """
    if not proc.has_our_numbers():
        return None
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None


def start_time(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None if the kernel does not say."""
    return _started(_stat(pid) or [])


def _started(state: list[str]) -> int | None:
    return int(state[_STARTED]) if state else None


def is_running(pid: int, started: int | None) -> bool:
    """
    Returns True if the process of that start time runs; a process to be reaped does not.

    If a start time is not known (None or 0), or not to be read now, any process that has that pid
    is taken for it.
    """
    state = _stat(pid) if started else None
    if state is not None:
        return _started(state) == started and not _is_zombie(state)
    try:
        return not poll([Descriptor.opened(os.pidfd_open, pid)])
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        return _takes_signals(pid)


def _takes_signals(pid: int) -> bool:
    """Returns True if there is such a process, even one that is to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_zombie(state: list[str]) -> bool:
    # Its other threads may end later than the first one, whose state this is.
    return state[0] in "ZX" and int(state[_THREADS]) <= 1


def reap(pid: int, started: int | None) -> int | None:
    """
    Reap the process of that start time if it has ended as a child, born or adopted, of this one.

    Returns:
        Its exit code, as multiprocessing has it; None if there was nothing to reap.
    """
    state = _stat(pid) or []
    if not started or _started(state) != started or not _is_zombie(state):
        return None
    try:
        reaped, status = proc.wait_for_child(pid, os.WNOHANG)
    except ChildProcessError:  # it is another process's
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


class Watch:
    """Sees the end of a process that need not be a child of this one."""

    def __init__(self, pid: int, started: int | None) -> None:
        """Watch the process of that start time, even if it has ended already."""
        self.pid = pid
        self._started = started
        self.descriptors: list[int] = []  # readable when it ends, if the kernel has such a thing
        with contextlib.suppress(OSError, AttributeError):
            self.descriptors.append(os.pidfd_open(pid))
        # How long to wait at most before looking again; None: for ever.
        self.patience_s = None if self.descriptors else _LOOK_AGAIN_S
        # Looked at after the descriptor, which may be that of a later process with this pid.
        self._has_ended = not is_running(pid, started)

    @property
    def has_ended(self) -> bool:
        """True if it has ended."""
        if self._has_ended or not self.descriptors:
            return self._has_ended or not is_running(self.pid, self._started)
        return bool(poll(self.descriptors))

    def close(self) -> None:
        """Watch no more."""
        while self.descriptors:
            os.close(self.descriptors.pop())


class ParentWatch:
    """
    Ends this process when the trainer ends, even in the middle of user code.

    A process that unpickles its watch watches from then on, so before it unpickles a dataset.
    """

    def __init__(self, pid: int) -> None:
        """Name the process to watch, which runs now."""
        self.pid = pid
        self.started = start_time(pid)
        self.score = victims.own_score()  # how much it is the kernel's victim

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.watch()

    def watch(self) -> None:
        """Start a thread without Python's lock that ends this process; again after a fork."""
        if _watched.get(self.pid) == os.getpid():
            return
        victims.volunteer(self.score)
        watch_process(self.pid)
        _watched[self.pid] = os.getpid()
        if not is_running(self.pid, self.started):
            os._exit(1)


def wait_until(is_enough: Callable[[], bool], timeout_s: float | None) -> None:
    """Wait until something of other processes is true, at most that long; None: for ever."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_enough():
        left_s = _LOOK_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            return
        # Not by time.sleep(): where clock_nanosleep is refused, that is an error.
        poll((), min(left_s, _LOOK_S))
