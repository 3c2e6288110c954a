"""System calls of running processes, counted by strace while a block of code runs."""

import re
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_ROW = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", re.MULTILINE)


def count(pids: list[int], work: Callable[[], None]) -> dict[str, int]:
    """
    Count the system calls that `pids` and all their threads make while `work` runs.

    Returns:
        Calls by name; the processes run slower while they are traced, so nothing is timed here.
    """
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder, "summary")
        tracer = _attach(pids, summary)
        try:
            work()
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=30)
        calls = {name: int(number) for number, name in _ROW.findall(summary.read_text())}
    calls.pop("total", None)
    return calls


def _attach(pids: list[int], summary: Path) -> subprocess.Popen:
    options = [option for pid in pids for option in ("-p", str(pid))]
    command = ["strace", "-f", "-c", "-o", str(summary), *options]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for _ in pids:
        if "attached" not in tracer.stderr.readline():
            raise RuntimeError("strace cannot attach: it needs the right to trace processes")
    return tracer
