"""What /proc says of processes: whose they are, when they began, and what others call them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from shmloader.views.live import printable


@dataclass(frozen=True)
class RunningProcess:
    """A process that runs."""

    pid: int
    command: str
    start: int  # in clock ticks after boot


def pids() -> Iterator[int]:
    """Yield the processes that /proc shows."""
    yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def process(pid: int) -> RunningProcess:
    """Read what a process is."""
    command = _read(pid, "cmdline").replace("\0", " ").strip()
    return RunningProcess(pid, printable(command), int(_stat(pid)[19]))


def lives(pid: int) -> bool:
    """Returns True if a process has not ended; a zombie has."""
    return _condition(pid) not in "ZX"


def is_stopped(pid: int) -> bool:
    """Returns True if a process was stopped by a signal, and not by a tracer for a look."""
    return _condition(pid) == "T"


def _condition(pid: int) -> str:
    """The kernel's letter for what a process does."""
    try:
        return _stat(pid)[0]
    except OSError:
        return "X"


def _stat(pid: int) -> list[str]:
    """Read what stands behind the command's name, which may hold anything."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except ProcessLookupError as error:  # it ended between the two calls
        raise FileNotFoundError(*error.args) from None
