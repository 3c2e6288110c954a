"""Who gets a core: how long a process ran or was ready to, how many cores there are, niceness."""

import contextlib
import math
import os
from collections.abc import Callable, Iterable

from shmloader.errors import REFUSALS, naming
from shmloader.memory import groups, limits
from shmloader.processes import proc

# OpenMP binds the thread that loads it, with `import torch`; what is started from that thread
# inherits its few cores, and so do all workers, however started.
_BINDING = "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"
UNBIND = (
    "set OMP_PROC_BIND=false, or call os.sched_setaffinity(0, range(os.cpu_count())) in "
    "worker_init_fn"
)


def scheduled_ns(thread: int) -> tuple[int, int]:
    """
    Read (running, ready but not running) of a thread since it began, in nanoseconds.

    Zeros if it is gone, the kernel does not count, or /proc is another namespace's.

    Args:
        thread: Its native id; a process's is that of its main thread.
    """
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{thread}/schedstat") as file:
        if proc.has_our_numbers():
            running, ready, *_ = file.read().split()
            return int(running), int(ready)
    return 0, 0


def yield_cores(nice: int) -> None:
    """
    Add to the niceness of every thread of this process, up to the kernel's 19.

    On Linux niceness is a thread's own. Later threads inherit it from the one that starts them, but
    in a worker that was not forked, libraries such as numpy's have started theirs at their import.

    Raises:
        OSError: The system does not let this process, such as under a filter of system calls.
    """
    with naming("getpriority or setpriority", "or omit nice"):
        for thread in proc.threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                own = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, own + nice)


def cores() -> float:
    """
    How many cores this process may use: those of its affinity, or its group's share of time.

    Ranks of a training on one machine have an equal part each, at least one core; but a launcher
    may have given each a part already, and then its affinity is not its parent's.
    """
    ranks = limits.ranks()
    allowed = float(allowed_cores(0))
    share = least_share(groups.folders("cpu"), groups.read_text)
    if ranks == 1:
        return min(allowed, share)
    shared = allowed
    with contextlib.suppress(OSError):  # the launcher of a rank is gone
        shared = max(allowed, float(allowed_cores(os.getppid())))
    return min(allowed, _part(shared, ranks), _part(share, ranks))


def allowed_cores(process: int) -> int:
    """Count the cores of a process's affinity; 0 is this one. All, if the system does not tell."""
    try:
        return len(os.sched_getaffinity(process))
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
    except AttributeError:
        pass  # it has none
    return os.cpu_count() or 1


def bound_by(allowed: int, there: int) -> str:
    """Name the setting by which OpenMP bound this process to the cores `allowed`; "": none did."""
    given = {name: value for name in _BINDING if (value := os.environ.get(name))}
    if allowed >= there or given.get("OMP_PROC_BIND", "").lower() == "false":
        return ""
    return next((f"{name}={value}" for name, value in given.items()), "")


def _part(cores: float, ranks: int) -> float:
    return max(cores / ranks, min(cores, 1.0))


def least_share(folders: Iterable[str], read: Callable[[str], str]) -> float:
    """Return the least share of time of some control groups, in cores; infinite without a limit."""
    return min((_share(folder, read) for folder in folders), default=math.inf)


def _share(folder: str, read: Callable[[str], str]) -> float:
    # Version 2 has both numbers in one file, "max" for no limit; version 1 has -1 for that.
    words = read(f"{folder}/cpu.max").split()
    words = words or [read(f"{folder}/cpu.cfs_{each}_us").strip() for each in ("quota", "period")]
    if all(word.isdigit() and int(word) > 0 for word in words):
        quota, period = map(int, words)
        return quota / period
    return math.inf
