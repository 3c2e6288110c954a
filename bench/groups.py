"""Control groups with less memory or fewer cores, and rows in them, as in a container."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.driver import Ended, Row, end_of

_LONGEST_S = 120
_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000

# Where a group is made, the files of its limit, and that of the most it ever held. The second limit
# leaves no swap space: version 1 counts it together with memory, and takes it after the first.
_VERSIONS = (
    (
        _ROOT / "memory",
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    (_ROOT, "memory.max", "memory.swap.max", "memory.peak"),
)


def why_not() -> str | None:
    """Say why no group with a memory limit can be made here, or None."""
    return None if _version() else "no control group with a memory limit can be made here"


def _version() -> tuple[Path, str, str, str] | None:
    """Find where a group with a limit can be made, and the names of its files."""
    for root, limit, swap, most in _VERSIONS:
        with suppress(OSError), _group(root) as folder:
            if os.access(folder / limit, os.W_OK):
                return root, limit, swap, most
    return None


@contextmanager
def cores(share: float) -> Iterator[list[str]]:
    """
    Make a group with so many cores, and give the command that runs another one in it.

    Raises:
        OSError: None can be made here.
    """
    with _group(_ROOT) as folder:
        # Opened as it is: a folder that is no group would get a new file.
        with (folder / "cpu.max").open("r+") as limit:
            limit.write(f"{int(share * _PERIOD_US)} {_PERIOD_US}")
        yield _joining(folder)


def run(row: Row, limit_mb: float) -> tuple[Ended, float | None]:
    """
    Run a row in a process of its own, in a group with this memory that it joins first.

    Returns:
        How it ended, and the most MB that the group held; older kernels of version 2 do not say.
    """
    root, limit, swap, most = _version()
    with _group(root) as folder:
        limit_bytes = int(limit_mb * 1e6)
        (folder / limit).write_text(str(limit_bytes))
        with suppress(OSError):  # a kernel that does not count swap space
            (folder / swap).write_text(str(limit_bytes) if "memsw" in swap else "0")
        ended = end_of(row, _LONGEST_S, _joining(folder))
        most_mb = None
        with suppress(OSError):
            most_mb = int((folder / most).read_text()) / 1e6
        return ended, most_mb


def _joining(folder: Path) -> list[str]:
    return ["sh", "-c", f'echo $$ > "{folder}/cgroup.procs" && exec "$@"', "sh"]


@contextmanager
def _group(root: Path) -> Iterator[Path]:
    """Make a group and take it away."""
    folder = root / f"shmloader-bench-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        _empty(folder)
        folder.rmdir()


def _empty(folder: Path) -> None:
    """End what a run left in its group, and wait until nothing is there."""
    deadline, listed = time.monotonic() + _LONGEST_S, folder / "cgroup.procs"
    while listed.exists() and (pids := listed.read_text().split()):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {' '.join(pids)} do not end")
        time.sleep(0.05)
