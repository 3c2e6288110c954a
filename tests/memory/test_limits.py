"""How much memory there is, read from files as the kernel writes them."""

import os
import signal

import pytest

from shmloader.memory import groups, limits
from tests.helpers.interrupts import Interrupt

MEMINFO = "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n"
SWAP = "SwapTotal:  500 kB\nSwapFree:  400 kB\n"
NO_LIMIT_V1 = str((1 << 63) - 4096)  # what control groups of version 1 write


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """
    Returns a function that writes the files from which the limits are read.

    A text of several files may name their folder as TOP.
    """

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("TOP", str(tmp_path)))

    monkeypatch.setattr(groups, "PROC", str(tmp_path / "proc"))
    return write


def group(limit, usage, stat="inactive_file 0\n", **more):
    """Returns the files of a control group of version 2."""
    files = {"memory.max": limit, "memory.current": usage, "memory.stat": stat}
    return files | {name.replace("_", "."): text for name, text in more.items()}


def old_group(limit, usage, stat="", **more):
    """Returns the files of a control group of version 1."""
    files = {"limit_in_bytes": limit, "usage_in_bytes": usage, "stat": stat} | more
    return {f"memory.{name.replace('memsw_', 'memsw.')}": text for name, text in files.items()}


MOUNT_V2 = "30 23 0:26 {root} TOP/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_V1 = "31 23 0:27 {root} TOP/memory rw shared:9 - cgroup cgroup rw,hugetlb,memory\n"


def in_groups(*, meminfo=MEMINFO, name=None, root="/", **contents):
    """
    Returns the files of a process in the last of these groups, each inside the one before.

    Args:
        name: What the kernel calls the last group, if not by its folders below the mount.
        root: What it calls the group that is mounted.
    """
    files = {"proc/meminfo": meminfo, "proc/self/mountinfo": MOUNT_V2.format(root=root)}
    folder = ""
    for each, texts in contents.items():
        folder += f"/{each}"
        files |= {f"cgroup{folder}/{file}": text for file, text in texts.items()}
    return files | {"proc/self/cgroup": f"0::{name or folder}\n"}


def in_old_groups(*, meminfo=MEMINFO, root="/", name=None, **contents):
    """The same for control groups of version 1, beside a version 2 without a memory controller."""
    files = in_groups(meminfo=meminfo)
    files["proc/self/mountinfo"] += MOUNT_V1.format(root=root)
    folder = ""
    for each, texts in contents.items():
        folder += f"/{each}"
        files |= {f"memory{folder}/{file}": text for file, text in texts.items()}
    files["proc/self/cgroup"] = f"3:cpu,cpuacct:/x\n2:hugetlb,memory:{name or folder}\n0::/\n"
    return files


# Shared memory is never given up; clean file pages are, used once or more often, and slab.
STAT = (
    "anon 1\nshmem 90000\nslab_reclaimable 300\ninactive_anon 90000\nactive_anon 7\n"
    "inactive_file 50000\nactive_file 20000\nunevictable 5\nfile_dirty 1000\n"
    "file_writeback 20\n"
)
# In version 1 the fields of the whole group are those that begin with "total_".
OLD_STAT = (
    "cache 5\ninactive_file 1\nactive_file 2\ndirty 0\ntotal_cache 9\n"
    "total_inactive_file 40000\n"
    "total_active_file 5000\ntotal_dirty 300\ntotal_writeback 20\n"
)


def swapping(outer, inner):
    """The files of a process in two groups, where there is swap space."""
    return in_groups(
        meminfo=MEMINFO + SWAP,
        a=group("max", "0", **outer),
        b=group("900000", "700000", **inner),
    )


def swapping_old(**more):
    """The same for a group of version 1, which limits memory and swap space together."""
    return in_old_groups(meminfo=MEMINFO + SWAP, a=old_group("900000", "700000", **more))


def contained(name, root):
    """The files of a process in a container, of which only the mounted group is to be seen."""
    inside = {f"cgroup/{file}": text for file, text in group("900000", "1").items()}
    return in_groups(name=name, root=root) | inside


# What the kernel writes, how much memory there is in all, and how much is left.
FOUND = {
    "no group": ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"}, 2_048_000, 1_024_000),
    "no file": ({}, None, None),
    "swap space of the machine": ({"proc/meminfo": MEMINFO + SWAP}, 2_048_000, 1_433_600),
    "an outer limit": (
        in_groups(a=group("900000", "300000"), b=group("max", "300000")), 900_000, 600_000
    ),
    "an inner limit": (
        in_groups(a=group("max", "300000"), b=group("900000", "300000")), 900_000, 600_000
    ),
    "pages that are given up": (
        in_groups(a=group("900000", "850000", STAT)), 900_000, 50_000 + 70_300 - 1_020
    ),
    # Beyond it processes are slowed down, not killed.
    "a soft limit": (
        in_groups(a=group("900000", "100000", memory_high="500000")), 500_000, 800_000
    ),
    "swap space": (swapping({}, {}), 900_000, 609_600),
    "no swap space inside": (
        swapping({}, {"memory_swap_max": "0", "memory_swap_current": "0"}), 900_000, 200_000
    ),
    "some swap space outside": (
        swapping({"memory_swap_max": "300000", "memory_swap_current": "100000"}, {}),
        900_000,
        400_000,
    ),
    "too much swap space used": (
        swapping({}, {"memory_swap_max": "1000", "memory_swap_current": "3000"}), 900_000, 200_000
    ),
    "version 1, and its no limit": (
        in_old_groups(a=old_group(NO_LIMIT_V1, "0"), b=old_group("700000", "0")), 700_000, 700_000
    ),
    "version 1, those below": (
        in_old_groups(a=old_group("900000", "800000", OLD_STAT)), 900_000, 100_000 + 44_680
    ),
    # Before Linux 5.11 it may leave the groups below it out of its limit.
    "version 1, alone": (
        in_old_groups(
            a=old_group("500000", "400000", use_hierarchy="0"),
            b=old_group("900000", "0", "inactive_file 7\n"),
        ),
        900_000,
        900_007,
    ),
    "version 1, swap space": (swapping_old(), 900_000, 609_600),
    "version 1, no swapping": (swapping_old(swappiness="0"), 900_000, 200_000),
    "version 1, no limit of both": (
        swapping_old(memsw_limit_in_bytes=NO_LIMIT_V1), 900_000, 609_600
    ),
    "version 1, a limit of both": (
        swapping_old(memsw_limit_in_bytes="950000", memsw_usage_in_bytes="800000"),
        900_000,
        150_000,
    ),
    "a container with the machine's names": (contained("/docker/x", "/docker/x"), 900_000, 899_999),
    "a namespace of groups": (contained("/", "/"), 900_000, 899_999),
    "moved out of a namespace": (contained("/../y", "/.."), 900_000, 899_999),
    "a mount of another group": (contained("/elsewhere", "/docker/x"), 900_000, 899_999),
    "beside the mounted group": (contained("/docker/x/../y", "/docker/x"), 900_000, 899_999),
    "below the mounted group": (
        in_groups(a=group("900000", "2"), name="/docker/x/a", root="/docker/x"), 900_000, 899_998
    ),
    "a group that is gone": (in_groups(name="/gone"), 2_048_000, 1_024_000),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_the_kernel_writes_is_read(machine, name):
    """Each limit above the process counts, with swap space as far as there is some for it."""
    files, total, left = FOUND[name]
    machine(files)
    available = limits.available()

    assert (total, left) == (limits.total_bytes(), available and available.bytes)
    assert left == limits.available_bytes()


def test_the_group_that_runs_out_first_is_named(machine, tmp_path):
    """Each has its own limit and usage; in none it is the machine."""
    machine(in_groups(a=group("900000", "800000"), b=group("700000", "100000")))
    where = f"below the limit of 0.9 MB of its control group {tmp_path}/cgroup/a"
    assert (100_000, where) == limits.available()

    machine({"proc/self/cgroup": "0::/\n"})
    assert (1_024_000, "on this machine") == limits.available()


def test_names_with_white_space(machine, tmp_path):
    """The kernel writes white space in a path of a mount as a number."""
    files = in_groups(a=group("900000", "3"))
    files["proc/self/mountinfo"] = files["proc/self/mountinfo"].replace("cgroup rw", "c\\040g rw")
    machine(files)
    os.rename(tmp_path / "cgroup", tmp_path / "c g")

    assert 899_997 == limits.available().bytes


def test_folders_of_another_controller(machine, tmp_path):
    """The groups of a controller are those of its own hierarchy, and of version 2 in any case."""
    files = in_old_groups(job={"memory.limit_in_bytes": "1"})
    files["proc/self/mountinfo"] += "32 23 0:28 / TOP/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    machine(files)

    assert [f"{tmp_path}/cpu", f"{tmp_path}/cpu/x", f"{tmp_path}/cgroup"] == groups.folders("cpu")
    assert [f"{tmp_path}/memory", f"{tmp_path}/memory/job", f"{tmp_path}/cgroup"] == (
        groups.folders("memory")
    )
    assert [f"{tmp_path}/cgroup"] == groups.folders("freezer")


def test_an_interrupt_loses_no_file():
    """A handler that raises as a file is read leaves no descriptor, as the fixture of all sees."""
    caught = 0

    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(500):
            try:
                signal.setitimer(signal.ITIMER_REAL, (1 + turn % 25) * 1e-6)
                for _ in range(20):
                    groups.read_text("/proc/meminfo")
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                caught += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught > 100
