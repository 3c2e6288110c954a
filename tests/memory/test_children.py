"""Invariant 4 in children that user code forks: batches held at a fork stay intact there."""

import _thread
import contextlib
import functools
import gc
import os
import signal

import pytest
import torch
from torch.utils.data import default_collate

from shmloader import DataLoader
from tests.deaths.test_watching import without_descriptors
from tests.helpers.copies import Child, WaitingChild
from tests.helpers.datasets import Numbered, batch, state
from tests.helpers.programs import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")

SIZE = 4
BATCHES = 30
FIRST = batch(0, SIZE)


def open_loader(**options):
    """Two batches in flight and six slots: up to four may be leased."""
    settings = {"batch_size": SIZE, "num_workers": 1, "prefetch_factor": 2, "slots": 6}
    return DataLoader(Numbered(SIZE * BATCHES), **{**settings, **options})


def are_right(held):
    return all(torch.equal(batch(number, SIZE), each) for number, each in enumerate(held))


def child_that_reads(held, go_on):
    """Fork a child that waits and then exits with 0 if the held batches are unchanged."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.read(go_on, 1)
        os._exit(0 if are_right(held) else 2)
    finally:
        os._exit(1)


def descriptor_of(name):
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if name in os.readlink(f"/proc/self/fd/{number}"):
                return int(number)
    raise AssertionError(f"no descriptor of {name}")


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.thorough
def test_a_file_that_has_the_number_of_another_stays_open(tmp_path):
    """What tells of children is closed by its number only while that still means it."""
    with open_loader() as loader, open(tmp_path / "mine", "w") as mine:
        held = next(iter(loader))
        reader = WaitingChild(are_right, [held])
        number = descriptor_of("shmloader-witness")
        os.dup2(mine.fileno(), number)
        assert ["True", "True"] == [Child(is_open, number).end(), reader.end()]
    del held, loader
    gc.collect()
    assert is_open(number)
    os.close(number)


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def daemonise(go_on, told_end, held):
    """Close all descriptors but two in a child of a child, wait there, and tell of the batches."""
    if os.fork():
        os._exit(0)
    os.setsid()
    low, high = sorted((go_on, told_end))
    os.closerange(0, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, 1024)
    os.read(go_on, 1)
    os.write(told_end, b"=" if are_right(held) else b"!")
    os._exit(0)


@pytest.mark.thorough
def test_a_daemon_reads_held_batches_as_long_as_it_lives():
    """A child that closes every descriptor and forks again keeps the batches that it inherited."""
    (go_on, go), (told, told_end) = os.pipe(), os.pipe()
    with open_loader() as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(3)]
        child = os.fork()
        if child == 0:
            daemonise(go_on, told_end, held)
        assert exit_code(child) == 0
        held.clear()
        assert sum(1 for _ in batches) == BATCHES - 3
        assert sum(1 for _ in loader) == BATCHES
        assert state(loader, "forked") == 3
        os.write(go, b"!")
        assert os.read(told, 1) == b"="
        assert wait_until(lambda: state(loader, "forked") == 0)
    for end in (go_on, go, told, told_end):
        os.close(end)


def test_a_child_that_executes_a_program_reads_no_more():
    """The slots of a child that executed another program are used again while that runs."""
    with open_loader() as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(3)]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(reader, 0)
            os.execvp("cat", ["cat"])
        held.clear()
        assert wait_until(lambda: state(loader, "forked") == 0)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.close(writer)
        assert exit_code(child) == 0
        del batches
    os.close(reader)


def test_a_fork_without_a_descriptor_left_retires_the_slots():
    """If nothing can tell of the child's end, its slots are never used again."""
    read_end, write_end = os.pipe()
    with open_loader(slots=8) as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(2)]
        with without_descriptors():
            child = child_that_reads(held, read_end)
        held.clear()
        next(batches)
        assert state(loader, "retired") == 2
        assert sum(1 for _ in batches) == BATCHES - 3
        os.write(write_end, b"!")
        assert exit_code(child) == 0
        assert sum(1 for _ in loader) == BATCHES
    os.close(read_end)
    os.close(write_end)


class Interruption(Exception):
    """Raised by the handler of a signal below."""


def interrupt(number, frame):
    raise Interruption


def fork_interrupted():
    """Fork while a signal is about to be handled by the next line of Python; that child reads."""
    go_on, go = os.pipe()
    signal.signal(signal.SIGUSR1, interrupt)
    with open_loader() as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(3)]
        os.register_at_fork(before=functools.partial(_thread.interrupt_main, signal.SIGUSR1))
        with contextlib.suppress(Interruption):
            child_that_reads(held, go_on)
        held.clear()
        made = sum(1 for _ in batches)
        forked = state(loader, "forked")
        os.write(go, b"!")
        return made, forked


def test_an_interrupt_at_a_fork_leaves_no_fork_unmarked():
    """A signal that arrives just before the hooks of a fork does not keep them from marking."""
    assert Child(fork_interrupted).end() == repr((BATCHES - 3, 3))


def test_a_child_of_a_worker_reads_what_the_worker_made():
    """A process that collate_fn forks reads the collated batch intact after it was sent."""
    read_end, write_end = os.pipe()
    verdict_end, told_end = os.pipe()
    children = []

    def collate(samples):
        made = default_collate(samples)
        if not children:
            children.append(os.fork())
            if children == [0]:
                os.read(read_end, 1)
                os.write(told_end, b"=" if torch.equal(FIRST, made) else b"!")
                os._exit(0)
        return made

    with open_loader(collate_fn=collate, persistent_workers=True) as loader:
        assert sum(1 for _ in loader) == BATCHES
        os.write(write_end, b"!")
        assert os.read(verdict_end, 1) == b"="
    for end in (read_end, write_end, verdict_end, told_end):
        os.close(end)
