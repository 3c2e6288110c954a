"""Memory control groups of a given size, and rows in them, as in a container."""

import os
import signal
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.driver import Ended, end_of

_LONGEST_S = 120

# Where a group is made, the files of its limit, and that of the most it ever held. The second limit
# leaves no swap space: version 1 counts it together with memory, and takes it after the first.
_VERSIONS = (
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max", "memory.peak"),
)


def why_not() -> str | None:
    """Say why no group can be made here, or None."""
    return None if _place() else "no control group with a memory limit can be made here"


@contextmanager
def _group(limit_mb: float) -> Iterator[Path]:
    """Make a group of this size, without swap space, and take it away."""
    folder, limit, swap, _ = _place()
    folder.mkdir()
    try:
        limit_bytes = int(limit_mb * 1e6)
        (folder / limit).write_text(str(limit_bytes))
        with suppress(OSError):  # a kernel that does not count swap space
            (folder / swap).write_text(str(limit_bytes) if "memsw" in swap else "0")
        yield folder
    finally:
        _empty(folder)
        folder.rmdir()


@dataclass(frozen=True)
class Outcome:
    """
    What came of a row in a group.

    Attributes:
        found: What it returned; None if it failed.
        reason: "passes", "killed", or the last line that it wrote to stderr.
        most_mb: The most that the group held; older kernels of version 2 do not say.
    """

    found: dict | None
    reason: str
    most_mb: float | None


def run(row: Any, limit_mb: float) -> Outcome:
    """Run a row in a process of its own, in a group of this size that it joins first."""
    with _group(limit_mb) as folder:
        join = f'echo $$ > "{folder}/cgroup.procs" && exec "$@"'
        ended = end_of(row, _LONGEST_S, ["sh", "-c", join, "sh"])
        reason = _reason(ended)
        return Outcome(ended.found if reason == "passes" else None, reason, _most_mb(folder))


def _reason(ended: Ended) -> str:
    if ended.status is None:
        return f"no end within {_LONGEST_S} s"
    if ended.status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return "killed"
    if ended.status == 0:
        return "passes"
    last = (ended.said.strip() or f"exit code {ended.status}").splitlines()[-1]
    return textwrap.shorten(last.replace("|", "/"), 120)


def _most_mb(folder: Path) -> float | None:
    for *_, most in _VERSIONS:
        try:
            return int((folder / most).read_text()) / 1e6
        except OSError:
            continue
    return None


def _place() -> tuple[Path, str, str, str] | None:
    """Find where a group with a limit can be made: its folder, and the names of its files."""
    for root, limit, swap, most in _VERSIONS:
        folder = root / f"shmloader-bench-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        has_limit = os.access(folder / limit, os.W_OK)
        folder.rmdir()
        if has_limit:
            return folder, limit, swap, most
    return None


def _empty(folder: Path) -> None:
    """End what a run left in its group, and wait until nothing is there."""
    deadline = time.monotonic() + _LONGEST_S
    while pids := (folder / "cgroup.procs").read_text().split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {' '.join(pids)} do not end")
        time.sleep(0.05)
