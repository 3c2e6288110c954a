"""
What holds for every test: it ends, leaves nothing behind, and its random choices can be replayed.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import random
import time
import zlib
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import NamedTuple

import hypothesis
import numpy
import pytest
import torch

from shmloader.memory import forks

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120  # per test; ten times what the slowest takes, so that only a hang meets it
GRACE_S = 5.0  # for a child that is just exiting

pytest_plugins = ["golden.plugin", "endings"]

PASSED = pytest.StashKey[bool]()

# Timings are not asserted, and a failure prints what is needed to see it again.
hypothesis.settings.register_profile("shmloader", deadline=None, print_blob=True)
hypothesis.settings.load_profile("shmloader")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stress-seconds",
        type=float,
        default=2.0,
        metavar="N",
        help="how long each test that applies force does so (default: %(default)s)",
    )
    parser.addoption(
        "--seed", type=int, default=None, metavar="N", help="replay the run that printed this seed"
    )


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads the seed
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout: longest time a test may take, in seconds")
    if config.option.seed is None:
        config.option.seed = int.from_bytes(os.urandom(4), "little")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.seed
    refuse_stale_extension()


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed} (replay with --seed {config.option.seed})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            stressed = "stress_seconds" in getattr(item, "fixturenames", ())
            extra_s = 10 * config.option.stress_seconds if stressed else 0
            item.add_marker(pytest.mark.timeout(TIMEOUT_S + extra_s))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


def refuse_stale_extension() -> None:
    """
    Stop the run when the extension in this folder is older than a source of it.

    Raises:
        pytest.UsageError: The tests would run code that nobody is looking at.
    """
    spec = importlib.util.find_spec("shmloader.core._core")
    if spec is None or spec.origin is None or ROOT not in Path(spec.origin).parents:
        return
    built_at = Path(spec.origin).stat().st_mtime
    for source in core_sources():
        if source.stat().st_mtime > built_at:
            raise pytest.UsageError(
                f"{source.relative_to(ROOT)} is newer than the built extension: run `make build`"
            )


def core_sources() -> Iterator[Path]:
    """
    List the files that `shmloader._core` is built from.
    """
    yield from (ROOT / "csrc").glob("*.[ch]")
    for pattern in ("*.pyx", "*.pxd"):
        yield from (ROOT / "shmloader" / "core").glob(pattern)


@pytest.fixture
def stress_seconds(request: pytest.FixtureRequest) -> float:
    """
    How long a test of the kind "force" goes on, in seconds.
    """
    return request.config.option.stress_seconds


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> int:
    """
    Seed every generator from the printed seed and the test's name: a test can be replayed alone.
    """
    seed = zlib.crc32(request.node.nodeid.encode(), request.config.option.seed) & 0xFFFFFFFF
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    Fail a test that passed but left shared memory, a descriptor or a process behind.

    A test that failed is not asked: its traceback keeps what it held alive.
    """
    before = belongings()
    yield
    if not request.node.stash.get(PASSED, False):
        return
    left = belongings() - before
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        gc.collect()
        multiprocessing.active_children()  # reaps those that have exited
        left &= belongings()
        time.sleep(0.01 if left else 0)
    assert not left, "left behind: " + ", ".join(sorted(left))


@pytest.fixture
def children_are_forgotten() -> Iterator[None]:
    """
    Look once more for children that were forked, which closes the pipes that tell of them.
    """
    yield
    gc.collect()
    multiprocessing.active_children()
    forks.poll()


def belongings() -> set[str]:
    """
    Name what this run holds of the machine: shared memory, descriptors, processes.

    Returns:
        One phrase per thing, the same for as long as it exists; nothing where there is no /proc.
    """
    if not Path("/proc/self/fd").is_dir():
        return set()
    return {*shared_memory(), *mappings(), *descriptors(), *processes()}


def shared_memory() -> Iterator[str]:
    """
    Name the POSIX shared-memory objects and semaphores of the machine.

    Those of torch carry their maker's pid, and count only while it is one of this run's processes:
    a worker of torch's own loader that is told to leave while it sends a batch leaves its file.
    """
    table = process_table()
    for name in os.listdir("/dev/shm"):
        maker = int(name.split("_")[1]) if name.startswith("torch_") else os.getpid()
        if maker in table and os.getpid() in (maker, *ancestors(maker, table)):
            yield f"/dev/shm/{name}"


def mappings() -> Iterator[str]:
    """
    Name the shared memory that this process maps: its descriptor may be closed already.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        *_, inode, target = line.split(maxsplit=5)
        if target.startswith(("/memfd:", "/dev/shm/")):
            yield f"mapping of {target} (inode {inode})"


def descriptors() -> Iterator[str]:
    """
    Name the open descriptors of this process, apart from those to multiprocessing's own helpers.
    """
    helpers = {resource_tracker._resource_tracker._fd, forkserver._forkserver._forkserver_alive_fd}
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if int(number) not in helpers:
            yield f"descriptor {number} of {target}"


def processes() -> Iterator[str]:
    """
    Name the processes that come from this one, apart from multiprocessing's own helpers.

    One whose parent has died is known by its process group, which it keeps.
    """
    helpers = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}
    table = process_table()
    me = os.getpid()
    strangers = {me, *ancestors(me, table), *helpers}
    for pid, process in table.items():
        parent = table.get(process.parent)
        orphan = process.group == os.getpgrp() and (parent is None or parent.group != process.group)
        if pid not in strangers and (me in ancestors(pid, table) or (orphan and process.alive)):
            yield f"process {pid}"


class Process(NamedTuple):
    """
    What the kernel says of a process: its parent's pid, its group's, and whether it still runs.
    """

    parent: int
    group: int
    alive: bool


def process_table() -> dict[int, Process]:
    """
    Read every process of the machine, by pid.
    """
    table = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path("/proc", pid, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just exited
            continue
        state, parent, group = stat.rpartition(")")[2].split()[:3]
        table[int(pid)] = Process(int(parent), int(group), state not in "ZX")
    return table


def ancestors(pid: int, table: dict[int, Process]) -> Iterator[int]:
    """
    List the parent of a process, its parent, and so on.
    """
    while pid in table:
        pid = table[pid].parent
        yield pid
