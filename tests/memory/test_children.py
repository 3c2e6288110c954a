"""Invariant 4 in children that user code forks: batches held at a fork stay intact there."""

import multiprocessing
import os

import pytest
import torch
from torch.utils.data import default_collate

from shmloader import DataLoader
from tests.helpers.datasets import Numbered, batch, state

pytestmark = [
    pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning"),
    pytest.mark.usefixtures("children_are_forgotten"),
]

SIZE = 4
BATCHES = 30
FIRST = batch(0, SIZE)


def open_loader(**options):
    """Two batches in flight and six slots: up to four may be leased."""
    settings = {"batch_size": SIZE, "num_workers": 1, "prefetch_factor": 2, "slots": 6}
    return DataLoader(Numbered(SIZE * BATCHES), **{**settings, **options})


def child_that_reads(held, go_on):
    """Fork a child that waits and then exits with 0 if the held batches are unchanged."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.read(go_on, 1)
        code = 0 if all(torch.equal(batch(i, SIZE), held[i]) for i in range(len(held))) else 2
    finally:
        os._exit(code)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_reads_held_batches_as_long_as_it_lives():
    """A batch held at a fork is intact in the child, even after the trainer dropped it."""
    read_end, write_end = os.pipe()
    with open_loader() as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(3)]
        child = child_that_reads(held, read_end)
        held.clear()
        for number, made in enumerate(batches, 3):
            assert torch.equal(batch(number, SIZE), made)
        del made
        assert state(loader, "forked") == 3
        assert sum(1 for _ in loader) == BATCHES
        os.write(write_end, b"!")
        assert exit_code(child) == 0
        assert sum(1 for _ in loader) == BATCHES
        assert state(loader, "forked") == 0
    os.close(read_end)
    os.close(write_end)


def test_a_grandchild_reads_held_batches_as_long_as_it_lives():
    """Batches stay intact after the child has ended: its own child still has the views."""
    read_end, write_end = os.pipe()
    verdict_end, told_end = os.pipe()
    with open_loader() as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(2)]
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.read(read_end, 1)
                same = all(torch.equal(batch(i, SIZE), held[i]) for i in range(2))
                os.write(told_end, b"=" if same else b"!")
            os._exit(0)
        assert exit_code(child) == 0
        held.clear()
        assert sum(1 for _ in batches) == BATCHES - 2
        assert sum(1 for _ in loader) == BATCHES
        os.write(write_end, b"!")
        assert os.read(verdict_end, 1) == b"="
    for end in (read_end, write_end, verdict_end, told_end):
        os.close(end)


def test_a_multiprocessing_child_reads_held_batches():
    """A process of the fork context that got a batch as an argument reads it intact."""
    context = multiprocessing.get_context("fork")
    go_on, verdicts = context.Event(), context.SimpleQueue()

    def child(held):
        go_on.wait()
        verdicts.put(torch.equal(FIRST, held))

    with open_loader() as loader:
        batches = iter(loader)
        process = context.Process(target=child, args=(next(batches),))
        process.start()
        assert sum(1 for _ in batches) == BATCHES - 1
        go_on.set()
        assert verdicts.get() is True
        process.join()
        process.close()
    verdicts.close()


def test_own_workers_keep_no_slot():
    """A worker of ours that is forked while batches are held does not keep them after release."""
    with open_loader() as first, open_loader() as second:
        batches = iter(first)
        held = [next(batches) for _ in range(3)]
        others = iter(second)
        next(others)
        held.clear()
        next(batches)
        assert state(first, "forked") == 0
        del batches, others


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
