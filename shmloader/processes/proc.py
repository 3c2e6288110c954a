"""
What the kernel says of processes: how children end, and what /proc has of threads and signals.

/proc says it in the numbers of the namespace that it was mounted in.

A process may see its parent namespace's /proc (`unshare --pid` without `--mount-proc`): there the
numbers that it knows are other processes, or none. Without imports of this package: a preloaded
server asks before it has any.
"""

import contextlib
import os
from collections.abc import Iterator

_THREADS = "/proc/self/task"


def has_our_numbers() -> bool:
    """Returns True if /proc calls this process by the number that it has for itself."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False  # not mounted, or in a namespace in which this process is not


def handled_signals(pid: int | None) -> int:
    """Return the signals that a process, None: this one, handles or ignores; 0: not known."""
    mask = 0
    if pid is not None and not has_our_numbers():
        return mask
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid or 'self'}/status", encoding="utf-8", errors="replace") as status,
    ):
        for line in status:
            if line.startswith(("SigIgn:", "SigCgt:")):
                mask |= int(line.split()[1], 16)  # a bit each, the lowest is signal 1
    return mask


def threads() -> Iterator[int]:
    """Yield the threads of this process, by their numbers in its own namespace."""
    are_ours = has_our_numbers()
    for thread in os.listdir(_THREADS):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            yield int(thread) if are_ours else _number_here(thread)


def _number_here(thread: str) -> int:
    with open(f"{_THREADS}/{thread}/status", encoding="utf-8", errors="replace") as status:
        numbers = next(line for line in status if line.startswith("NSpid:"))
    return int(numbers.split()[-1])


def names_of_threads(process: int | str = "self") -> Iterator[tuple[str, str]]:
    """Yield the threads of a process, by /proc's number and by name."""
    folder = f"/proc/{process}/task"
    for thread in os.listdir(folder):
        comm = f"{folder}/{thread}/comm"
        # One that has ended since has none.
        with contextlib.suppress(OSError), open(comm, encoding="utf-8", errors="replace") as file:
            yield thread, file.read().strip()


def names_of_other_threads() -> Iterator[str]:
    """Yield the names of this process's threads, but for the main one."""
    main = os.readlink("/proc/self")
    return (name for thread, name in names_of_threads() if thread != main)


def wait_for_child(pid: int, flags: int) -> tuple[int, int]:
    """Wait as os.waitpid() does, which gevent replaces by one that needs its own loop to run."""
    reaped, status, _ = os.wait4(pid, flags)
    return reaped, status
