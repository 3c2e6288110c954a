"""Know a process by its pid and start time, see that it still runs, and end with it."""

import os
from typing import Any

from shmloader.core import watch_process


def _stat(pid: int) -> list[str]:
    """The kernel's record of a process, from its state on; empty where there is no such record."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks as text; None if the kernel does not say."""
    return next(iter(_stat(pid)[19:20]), None)


def is_running(pid: int, started: str | None) -> bool:
    """
    Returns True if the process of that start time runs; a process to be reaped does not.

    Without a start time, any process that has that pid is taken for it.
    """
    if started is not None:
        state = _stat(pid)
        return state[19:20] == [started] and state[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class ParentWatch:
    """
    Ends this process when the trainer ends, even in the middle of user code.

    A process that unpickles its watch watches from then on, so before it unpickles a dataset.
    """

    def __init__(self, pid: int) -> None:
        """Name the process to watch, which runs now."""
        self.pid = pid
        self._started = start_time(pid)
        self._watcher: int | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.watch()

    def watch(self) -> None:
        """Start a thread without Python's lock that ends this process; again after a fork."""
        if self._watcher == os.getpid():
            return
        self._watcher = os.getpid()
        watch_process(self.pid)
        if start_time(self.pid) != self._started:
            os._exit(1)
