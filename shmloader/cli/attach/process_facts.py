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
    numbers: tuple[int, ...]  # its process id here, and in each namespace below in which it is

    @property
    def own_pid(self) -> int:
        """What it takes for its process id itself: another number if it is in a container."""
        return self.numbers[-1]


def pids() -> Iterator[int]:
    """Yield the processes that /proc shows."""
    yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def process(pid: int) -> RunningProcess:
    """Read what a process is."""
    command = _read(pid, "cmdline").replace("\0", " ").strip()
    return RunningProcess(pid, printable(command), int(_stat(pid)[19]), _numbers(pid))


def _numbers(pid: int) -> tuple[int, ...]:
    for line in _read(pid, "status").splitlines():
        if line.startswith("NSpid:"):
            return tuple(int(number) for number in line.split()[1:])
    return (pid,)  # a kernel without namespaces


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


def beside(trainer: RunningProcess) -> dict[int, int]:
    """By process ids of a trainer's namespace, those here; empty if the two are one."""
    if len(trainer.numbers) == 1:
        return {}
    found = {}
    space = _namespace(trainer.pid)
    for pid in pids():
        try:
            if _namespace(pid) == space:
                found[_numbers(pid)[-1]] = pid
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except ProcessLookupError as error:  # it ended between the two calls
        raise FileNotFoundError(*error.args) from None
