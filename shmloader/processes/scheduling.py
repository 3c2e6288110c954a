"""How long a process ran, and how long it was ready to run while no core was free."""

import contextlib
import math
import os
from collections.abc import Iterable

from shmloader.memory import groups


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


def cores() -> float:
    """How many cores this process may use: those of its affinity, or its group's share of time."""
    allowed = float(len(os.sched_getaffinity(0)))
    return min(allowed, _group_share())


def _group_share() -> float:
    """The least share of time that a control group of this process has, in cores."""
    return min((_share(folder) for folder in groups.folders("cpu")), default=math.inf)


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
