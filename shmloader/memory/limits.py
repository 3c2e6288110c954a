"""How much memory there is: of the machine, of this process's control group, of a limit."""

import os
from collections.abc import Iterator
from pathlib import Path

from shmloader.errors import OutOfSharedMemory

_UNLIMITED = 1 << 60  # control groups of version 1 write "no limit" as a number near 2^63
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _read_field(path: Path, name: str) -> int:
    """Read one number from a file of "name number" lines; 0 if it is not there."""
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _meminfo(name: str) -> int | None:
    kilobytes = _read_field(Path("/proc/meminfo"), f"{name}:")
    return kilobytes * 1024 if kilobytes else None


def _groups() -> Iterator[tuple[Path, Path, Path]]:
    """Every memory control group above this process: (limit, usage, stat) file paths."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number == "0":
            root, limit, usage = _CGROUP_ROOT, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = _CGROUP_ROOT / "memory"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / name.lstrip("/")
        for folder in (group, *group.parents):
            if folder == root.parent:
                break
            yield folder / limit, folder / usage, folder / "memory.stat"


def total_bytes() -> int | None:
    """The memory that this process could ever have, in bytes; None if the system does not say."""
    limits = [_meminfo("MemTotal"), *(_read_number(limit) for limit, _, _ in _groups())]
    return min((limit for limit in limits if limit is not None), default=None)


def available_bytes() -> int | None:
    """The memory that this process could take now, in bytes; None if the system does not say."""
    available = [_meminfo("MemAvailable")]
    for limit_path, usage_path, stat_path in _groups():
        limit, usage = _read_number(limit_path), _read_number(usage_path)
        if limit is not None and usage is not None:
            # Clean file pages count as used, but the kernel drops them before it kills a process.
            available.append(limit - usage + _read_field(stat_path, "inactive_file"))
    return min((each for each in available if each is not None), default=None)


def check_available(wanted_bytes: int) -> None:
    """
    Refuse pages for which the machine or a control group has no memory.

    A memfd has no size limit and a control group kills without an error: the refusal is ours.

    Raises:
        OutOfSharedMemory: Fewer bytes are available than wanted.
    """
    available = available_bytes()
    if available is None or wanted_bytes <= available:
        return
    raise OutOfSharedMemory(
        f"a batch wants {wanted_bytes / 1e6:.1f} MB more of shared memory, but only "
        f"{available / 1e6:.1f} MB are available to process {os.getpid()}: lower batch_size, "
        "slots or prefetch_factor, set ring_bytes, or raise the memory limit"
    )
