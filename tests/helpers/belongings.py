"""
What the tests' process holds of the machine: a test that leaves something behind fails.

A plugin, because a session's fixtures are no business of a conftest.py's hooks.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from shmloader.core import look_for_children
from shmloader.memory import page_locks
from shmloader.processes.servers import servers
from tests.helpers.programs import Process, process_table

GRACE_S = 5.0  # for a child that is just exiting

PASSED = pytest.StashKey[bool]()
# What the last test that passed has left, as all before it: where the next one begins.
HELD = pytest.StashKey[set[str] | None]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    Fail a test that passed but left shared memory, a descriptor or a process behind.

    A failed test is not checked: its traceback keeps its objects alive.
    """
    stash = request.session.stash
    before = stash.get(HELD, None) or belongings()
    stash[HELD] = None
    yield
    if not request.node.stash.get(PASSED, False):
        return
    held = belongings()
    left = held - before
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        gc.collect()
        multiprocessing.active_children()  # reaps those that have exited
        look_for_children()  # closes the files that tell of them
        page_locks.look_at_idle()  # unlocks what dropped loaders left
        held = belongings()
        left &= held
        time.sleep(0.01 if left else 0)
    assert not left, "left behind: " + ", ".join(sorted(left))
    stash[HELD] = held


def forget_what_is_held(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> None:
    """What is made for several tests, and closed behind the last, is none of these tests' own."""
    if fixturedef.scope != "function":
        request.session.stash[HELD] = None


pytest_fixture_setup = pytest.hookimpl(tryfirst=True)(forget_what_is_held)
pytest_fixture_post_finalizer = forget_what_is_held


def belongings() -> set[str]:
    """
    Name what this run holds of the machine: shared memory, descriptors, processes.

    Returns:
        One phrase per thing, the same for as long as it exists; nothing if there is no /proc.
    """
    if not Path("/proc/self/fd").is_dir():
        return set()
    return {*shared_memory(), *mappings(), *descriptors(), *processes()}


def shared_memory() -> Iterator[str]:
    """
    Name the POSIX shared-memory objects and semaphores of the machine.

    torch's carry the pid of their process, and count only while this belongs to this run: a worker
    of torch's own loader that is told to leave while it sends a batch leaves its file.
    """
    names = os.listdir("/dev/shm")
    if not names:
        return
    table = process_table()
    theirs = mapped_by_neighbours(table)
    for name in names:
        if name.startswith("torch_"):
            maker = int(name.split("_")[1])
            is_ours = maker in table and os.getpid() in (maker, *ancestors(maker, table))
        else:
            is_ours = is_there_and_not(f"/dev/shm/{name}", theirs)
        if is_ours:
            yield f"/dev/shm/{name}"


def is_there_and_not(path: str, theirs: set[int]) -> bool:
    """Returns True if that file still exists, and its number is not among these."""
    try:
        # By its number: glibc maps a semaphore under a name that it had before.
        return os.stat(path).st_ino not in theirs
    except FileNotFoundError:  # it has just been removed
        return False


def mapped_by_neighbours(table: dict[int, Process]) -> set[int]:
    """Collect the numbers of the files that other processes that run tests, or children, map."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return set()
    neighbours = (pid for pid in table if is_neighbour(pid, table))
    # Once a look: a file that some killed program left costs no reading of its own in every test.
    return {int(line.split()[4]) for pid in neighbours for line in mappings_of(pid)}


def is_neighbour(pid: int, table: dict[int, Process]) -> bool:
    """Returns True for the siblings of this process and their descendants."""
    line = {pid, *ancestors(pid, table)}
    return os.getppid() in line and os.getpid() not in line


def mappings_of(pid: int) -> list[str]:
    """Read the kernel's lines on a process's mappings; none if it has just ended."""
    try:
        return Path("/proc", str(pid), "maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def mappings() -> Iterator[str]:
    """Name the shared memory that this process maps: its descriptor may be closed already."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line or "/dev/shm/" in line:  # of a thousand lines, a few
            *_, inode, target = line.split(maxsplit=5)
            yield f"mapping of {target} (inode {inode})"


def descriptors() -> Iterator[str]:
    """
    Name the open descriptors of this process, apart from those to helpers that stay.
    """
    theirs = {each._channel.fileno() for each in servers.processes()} | {
        resource_tracker._resource_tracker._fd,
        forkserver._forkserver._forkserver_alive_fd,
    }
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if int(number) not in theirs:
            yield f"descriptor {number} of {target}"


def processes() -> Iterator[str]:
    """
    Name the processes that come from this one, apart from helpers that stay.

    An orphan is recognized by its process group, which it keeps.
    """
    table = process_table()
    me = os.getpid()
    strangers = {me, *ancestors(me, table), *helpers()}
    for pid, process in table.items():
        parent = table.get(process.parent)
        orphan = process.group == os.getpgrp() and (parent is None or parent.group != process.group)
        if pid not in strangers and (me in ancestors(pid, table) or (orphan and process.alive)):
            yield f"process {pid}"


def helpers() -> set[int | None]:
    """Returns the pids of helpers that stay, as multiprocessing's; None: it does not run."""
    theirs = {each.process.pid for each in servers.processes()}
    return theirs | {
        resource_tracker._resource_tracker._pid,
        forkserver._forkserver._forkserver_pid,
    }


def ancestors(pid: int, table: dict[int, Process]) -> Iterator[int]:
    """List the parent of a process, its parent, and so on."""
    while pid in table:
        pid = table[pid].parent
        yield pid
