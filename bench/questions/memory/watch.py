"""
The memory of all processes of a run, looked at from outside, several times a second.

Counted are anonymous pages, one that processes share after a fork once, and shared objects, each
once, mapped or not: our workers drop the pages of large batches from their page tables, and torch's
batches in flight are mapped nowhere.
"""

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass

from bench.driver import command_of
from bench.questions.memory.run import Row
from bench.report import machine
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
    # Files, not pipes: no process reads while it runs.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command_of(row), cwd=machine.CHECKOUT, stdout=output, stderr=errors
        )
        begin = due = time.monotonic()
        while process.poll() is None and due < begin + _LONGEST_S:
            now = time.monotonic()
            pids = [process.pid, *descendants(process.pid)]
            if len(pids) > 1:
                looks.append((now, _mb(pids)))
            due = max(due + _EVERY_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        process.kill()
        process.wait()
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{row} failed:\n{errors.read()}")
        digest = json.loads(output.read().splitlines()[-1])["digest"]
    seconds = [round(now - looks[0][0], 2) for now, _ in looks]
    return Run(seconds, [round(mb, 1) for _, mb in looks], digest)


def _mb(pids: list[int]) -> float:
    return (sum(memory_bytes(pid)["Pss_Anon"] for pid in pids) + shared_bytes(pids)) / 1e6
