"""How much memory there is, read from files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from shmloader import OutOfSharedMemory
from shmloader.memory import limits

MEMINFO = "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n"
NO_LIMIT_V1 = str((1 << 63) - 4096)  # what control groups of version 1 write


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Returns a function that writes the files from which the limits are read."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(limits, "_CGROUP_ROOT", tmp_path / "sys/fs/cgroup")
    monkeypatch.setattr(
        limits, "Path", lambda name: tmp_path / name.lstrip("/") if "/proc" in name else Path(name)
    )
    return write


def group(limit, usage, stat="inactive_file 0\n"):
    """Returns the files of a control group of version 2."""
    return {"memory.max": limit, "memory.current": usage, "memory.stat": stat}


def in_groups(**groups):
    """Returns the files of a process in the last of these groups, each inside the one before."""
    files = {"proc/meminfo": MEMINFO}
    folder = ""
    for name, contents in groups.items():
        folder += f"/{name}"
        files |= {f"sys/fs/cgroup{folder}/{file}": text for file, text in contents.items()}
    return files | {"proc/self/cgroup": f"0::{folder}\n"}


def test_without_groups_the_machine_counts(machine):
    """In no control group the machine's own figures are the limit."""
    machine({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"})

    assert (2_048_000, 1_024_000) == (limits.total_bytes(), limits.available_bytes())


def test_nothing_is_known_without_the_files(machine):
    """If none of the kernel's files exist, nothing is known, and nothing is refused."""
    machine({})
    limits.check_available(1 << 60)

    assert (None, None) == (limits.total_bytes(), limits.available_bytes())


@pytest.mark.parametrize(("outer", "inner"), [("900000", "max"), ("max", "900000")])
def test_every_group_above_counts(machine, outer, inner):
    """A limit counts on any level above the process."""
    machine(in_groups(a=group(outer, "300000"), b=group(inner, "300000")))

    assert (900_000, 600_000) == (limits.total_bytes(), limits.available_bytes())


def test_file_pages_that_the_kernel_gives_up_are_available(machine):
    """Clean file pages of a group count as used for the kernel and as available here."""
    machine(in_groups(a=group("900000", "850000", "anon 1\ninactive_file 50000\n")))

    assert 100_000 == limits.available_bytes()


def test_groups_of_version_one(machine):
    """The memory controller of version 1 is found among others, and its "no limit" is none."""
    folder = "sys/fs/cgroup/memory"
    files = {"memory.limit_in_bytes": "700000", "memory.usage_in_bytes": "0", "memory.stat": ""}
    machine(
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:hugetlb,memory:/a\n",
            f"{folder}/memory.limit_in_bytes": NO_LIMIT_V1,
            **{f"{folder}/a/{name}": text for name, text in files.items()},
        }
    )

    assert (700_000, 700_000) == (limits.total_bytes(), limits.available_bytes())


def test_refusal_says_the_numbers(machine):
    """A request that fits is allowed to the last byte; a refusal names the want and the rest."""
    machine(in_groups(a=group("900000", "0")))
    limits.check_available(900_000)

    with pytest.raises(OutOfSharedMemory) as seen:
        limits.check_available(900_001)
    assert f"only 0.9 MB are available to process {os.getpid()}" in str(seen.value)
