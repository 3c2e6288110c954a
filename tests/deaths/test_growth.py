"""`worker_bytes`: a worker that grew is replaced between two batches, and no batch changes."""

import mmap
import os
import random
import re
import time

import numpy
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from shmloader import DataLoader
from shmloader.worker import growth
from shmloader.worker.seeds import rng

COUNT = 60
LEAK = 4 << 20
MOST = 20 << 20

kept = []


def private_memory(length):
    """
    Take memory for good that no test had before.

    What malloc hands out may have been freed by another test, and so be counted already.
    """
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE)
    memory[:: mmap.PAGESIZE] = b"x" * (length // mmap.PAGESIZE)
    return memory


class Leaking(Dataset):
    """Samples that draw from everything, and leave some megabytes behind."""

    def __init__(self, draws_rng=False, leak=LEAK, worker=None):
        self.draws_rng = draws_rng
        self.leak = leak
        self.worker = worker

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        if info is not None and self.worker in (None, info.id):
            kept.append(private_memory(self.leak))
        own = rng().random() if self.draws_rng else 0.0
        drawn = [random.random(), numpy.random.rand(), torch.rand(()).item(), own]
        return torch.tensor([index, *drawn], dtype=torch.float64)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    """Look at each batch: workers inherit it, unless they are spawned."""
    monkeypatch.setattr(growth, "_EVERY_S", 0.0)


def run(kind, dataset, epochs=2, **options):
    """Iterate; returns the batches of all epochs, and the loader's stats if it has any."""
    generator = torch.Generator().manual_seed(3)
    loader = kind(
        dataset, batch_size=3, num_workers=2, generator=generator, shuffle=True, **options
    )
    torch.manual_seed(1)
    batches = [batch.clone() for _ in range(epochs) for batch in loader]
    stats = loader.stats() if kind is DataLoader else None
    text = str(loader.report()) if kind is DataLoader else ""
    if kind is DataLoader:
        loader.close()
    return batches, stats, text


@pytest.mark.thorough
def test_batches_are_torchs():
    """With seed_by="worker" they are torch's own, in every bit."""
    expected, _, _ = run(TorchDataLoader, Leaking(leak=4096))
    actual, stats, _ = run(DataLoader, Leaking(), worker_bytes=MOST)

    assert stats.replaced > 0
    assert all(torch.equal(one, other) for one, other in zip(expected, actual, strict=True))


@pytest.mark.thorough
def test_only_those_that_grow_are_replaced():
    """A worker that does not grow lives on, and is not in the report."""
    _, stats, text = run(DataLoader, Leaking(worker=1), worker_bytes=MOST)

    assert stats.replaced > 0
    assert re.search(r"worker 1 was replaced \d+ times because it grew beyond", text)
    assert "worker 0 was" not in text


@pytest.mark.thorough
def test_a_snapshot_without_room_is_tried_again():
    """Where the last answer leaves no room for it, the worker goes on, and no batch is lost."""
    loader = DataLoader(
        Leaking(), batch_size=3, num_workers=1, worker_bytes=MOST, ring_bytes=1 << 16, slots=8
    )
    batches = sum(1 for _ in loader)
    loader.close()

    assert COUNT // 3 == batches


@pytest.mark.thorough
def test_private_memory_is_counted():
    """What is allocated and written counts, memory that is shared does not."""
    size = 32 << 20
    before = growth.private_bytes()
    with private_memory(size), mmap.mmap(-1, size) as shared:
        after = growth.private_bytes()
        shared[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)
        beside = growth.private_bytes()

    assert size <= after - before < size + (4 << 20)
    assert beside - after < 4 << 20


class Pages:
    """
    Pages of a process that stands for this one, counted by a clock that stands for the real one.

    Attributes:
        inherited: Anonymous pages that it shares with its parent.
        written: Inherited ones that it has written to since.
        own: All others that are dirty and private.
        counts: When all of them were counted.
    """

    def __init__(self, monkeypatch):
        self.now, self.inherited, self.written, self.own = 0.0, 60, 0, 1000
        self.counts = []
        monkeypatch.setattr(growth, "_EVERY_S", 1.0)
        monkeypatch.setattr(growth, "private_bytes", self.count)
        monkeypatch.setattr(growth, "anonymous_bytes", lambda: self.inherited + self.own)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def count(self):
        """Walk over all pages, which takes a tenth of a second."""
        self.counts.append(self.now)
        self.now += 0.1
        return self.own + self.written


def test_pages_are_counted_where_bounds_do_not_tell(monkeypatch):
    """
    Nothing is counted while inherited pages cannot make it too much, or what is new is enough.

    Between the two all are counted if what is known of them may be too much, or 50 times as long
    later as a count takes.
    """
    pages = Pages(monkeypatch)
    watched = growth.Growth(100)
    outcomes = {}
    for second in range(1, 20):
        pages.now = float(second)
        pages.own += {3: 20, 8: 40, 17: 21, 19: 60}.get(second, 0)
        pages.written = 20 if second >= 7 else 0
        outcomes[second] = watched.is_too_much(), watched.taken_bytes

    # From the eighth second on it may be too much: 60 new ones, and 60 inherited.
    assert [0.0, 8.0, 14.0, 17.0, 18.0] == pages.counts
    assert (False, 80) == outcomes[8]
    assert (True, 101) == outcomes[17]
    assert (True, 141) == outcomes[19]


def test_pages_of_a_shared_list_do_not_count():
    """Nor while this process alone has mapped them: they are dirty, and not its own."""
    size = 32 << 20
    with open(os.memfd_create("list", os.MFD_CLOEXEC), "wb") as file:
        file.write(bytes(size))
        file.flush()
        before = growth.private_bytes()
        with mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
            assert mapped[:: mmap.PAGESIZE].count(0) == size // mmap.PAGESIZE
            read = growth.private_bytes()

    assert read - before < 4 << 20
