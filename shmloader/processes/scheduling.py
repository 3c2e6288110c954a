"""How long a process ran, and how long it was ready to run while no core was free."""

import contextlib
import os
from collections.abc import Iterable


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
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/cpu.max") as file:
        quota, period = file.read().split()
        if quota != "max":
            return int(quota) / int(period)
    return float("inf")
