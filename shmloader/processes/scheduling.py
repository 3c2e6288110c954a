"""Who gets a core: how long a process ran or was ready to, how many cores there are, niceness."""

import contextlib
import math
import os
from collections.abc import Iterable

from shmloader.memory import groups, limits


def scheduled_ns(thread: int) -> tuple[int, int]:
    """
    Read (running, ready but not running) of a thread since it began, in nanoseconds.

    Zeros if it is gone, or the kernel does not count.

    Args:
        thread: Its native id; a process's is that of its main thread.
    """
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{thread}/schedstat") as file:
        running, ready, *_ = file.read().split()
        return int(running), int(ready)
    return 0, 0


def all_scheduled_ns(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Read the same of several processes, by number."""
    return {pid: scheduled_ns(pid) for pid in pids}


def yield_cores(nice: int) -> None:
    """
    Add to the niceness of every thread of this process, up to the kernel's 19.

    On Linux niceness is a thread's own. Later threads inherit it from the one that starts them, but
    in a worker that was not forked, libraries such as numpy's have started theirs at their import.

    Raises:
        OSError: The system does not let this process, such as under a filter of system calls.
    """
    try:
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                own = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, own + nice)
    except OSError as error:
        kept = os.strerror(error.errno or 0)
        raise type(error)(
            f"nice={nice} cannot be added to this worker's niceness: {kept}. Leave the option out, "
            "or allow the system calls getpriority and setpriority"
        ) from error


def cores(process: int | None = None) -> float:
    """
    How many cores a process may use: those of its affinity, or its group's share of time.

    Ranks of a training on one machine have an equal part each, at least one core; but a launcher
    may have given each a part already, and then its affinity is not its parent's.

    Args:
        process: One that may be looked at; default: this process.

    Raises:
        OSError: That process is gone.
    """
    ranks = limits.ranks(process)
    allowed = float(len(os.sched_getaffinity(process or 0)))
    share = _group_share(process)
    if ranks == 1:
        return min(allowed, share)
    shared = max(allowed, _cores_of_parent(process))
    return min(allowed, _part(shared, ranks), _part(share, ranks))


def _part(cores: float, ranks: int) -> float:
    return max(cores / ranks, min(cores, 1.0))


def _cores_of_parent(process: int | None) -> float:
    """How many cores the launcher of a rank may use; 0 if that is not to be seen."""
    with contextlib.suppress(OSError, KeyError):
        parent = os.getppid() if process is None else _parent(process)
        return float(len(os.sched_getaffinity(parent)))
    return 0.0


def _parent(process: int) -> int:
    return groups.read_fields(f"{groups.PROC}/{process}/status")["PPid:"]


def _group_share(process: int | None) -> float:
    """The least share of time that a control group of a process has, in cores."""
    found = groups.folders("cpu", process)
    return min((_share(folder) for folder in found), default=math.inf)


def _share(folder: str) -> float:
    # Version 2 has both numbers in one file, "max" for no limit; version 1 has -1 for that.
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        if os.path.exists(f"{folder}/cpu.max"):
            with open(f"{folder}/cpu.max") as file:
                quota, period = file.read().split()
        else:
            with open(f"{folder}/cpu.cfs_quota_us") as file:
                quota = file.read()
            with open(f"{folder}/cpu.cfs_period_us") as file:
                period = file.read()
        if int(quota) > 0:
            return int(quota) / int(period)
    return math.inf
