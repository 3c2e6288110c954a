"""
The memory of all processes of a run, looked at from outside, several times a second.

Counted are anonymous pages, one that processes share after a fork once, and shared objects, each
once, mapped or not: our workers drop the pages of large batches from their page tables, and torch's
batches in flight are mapped nowhere.
"""

import time
from dataclasses import dataclass

from bench.driver import end_of
from bench.questions.memory.run import Row
from bench.usage import descendants, memory_bytes, shared_bytes

_EVERY_S = 0.2
_LONGEST_S = 300


@dataclass(frozen=True)
class Run:
    """What the looks found, from the first worker to the end: seconds, and MB of all processes."""

    seconds: list[float]
    mb: list[float]
    digest: str


def watch(row: Row) -> Run:
    """
    Run a row in a process of its own.

    Raises:
        RuntimeError: It fails.
    """
    looks: list[tuple[float, float]] = []

    def look(pid: int) -> None:
        now = time.monotonic()
        pids = [pid, *descendants(pid)]
        if len(pids) > 1:
            looks.append((now, _mb(pids)))
        time.sleep(max(0.0, now + _EVERY_S - time.monotonic()))

    ended = end_of(row, _LONGEST_S, look=look)
    if ended.status != 0:
        raise RuntimeError(f"{row} failed:\n{ended.said}")
    seconds = [round(now - looks[0][0], 2) for now, _ in looks]
    return Run(seconds, [round(mb, 1) for _, mb in looks], ended.found["digest"])


def _mb(pids: list[int]) -> float:
    return (sum(memory_bytes(pid)["Pss_Anon"] for pid in pids) + shared_bytes(pids)) / 1e6
