"""Memory control groups of a given size, and programs in them, as in a container."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.report import machine

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


class Unavailable(OSError):
    """No group can be made here."""


def check() -> None:
    """
    Look if groups can be made here.

    Raises:
        Unavailable: Not with version 1 and not with version 2.
    """
    _place()


@contextmanager
def group(limit_mb: float) -> Iterator[Path]:
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


def run(
    folder: Path, command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command whose process joins the group before it becomes the program."""
    join = f'echo $$ > "{folder}/cgroup.procs" && exec "$@"'
    # Files, not pipes: torch's shared-memory manager outlives the run with our end in its hand.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            status = subprocess.run(
                ["sh", "-c", join, "sh", *command], cwd=machine.CHECKOUT, env=environment,
                stdout=output, stderr=errors, timeout=_LONGEST_S,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"no end within {_LONGEST_S} s")
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


def most_mb(folder: Path) -> float | None:
    """Read the most that the group held; older kernels of version 2 do not say."""
    for *_, most in _VERSIONS:
        try:
            return int((folder / most).read_text()) / 1e6
        except OSError:
            continue
    return None


def _place() -> tuple[Path, str, str, str]:
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
    raise Unavailable("no control group with a memory limit can be made here, of neither version")


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
