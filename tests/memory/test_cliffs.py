"""No cliff: batches that once took ten times torch's time, by counts: pages, objects, spills."""

import contextlib
import io
import os
import pickle
import signal

import numpy
import pytest
import torch

from bench.loads import Made
from shmloader import DataLoader
from tests.helpers.datasets import identity

MB = 1_000_000
PAGES = 1 << 16  # what rounding to pages adds, and what the parts of a layout weigh

quiet = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")


def open_loader(dataset, **options):
    """Open a loader whose batches are the samples; no collate function touches them."""
    given = {"num_workers": 2, "batch_size": None, "collate_fn": identity}
    return DataLoader(dataset, **{**given, **options})


# What a batch weighs.


class Sizer(pickle.Pickler):
    """A pickler that adds up storages, each once, in place of pickling tensors."""

    def __init__(self, file):
        super().__init__(file, 5)
        self.storages = {}

    def reducer_override(self, value):
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        storage = value.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return int, (0,)


def sent_by_torch(batch):
    """Return the bytes of a batch's pickle and of the storages that torch shares beside it."""
    file = io.BytesIO()
    sizer = Sizer(file)
    sizer.dump(batch)
    return file.tell() + sum(sizer.storages.values())


class Sentence:
    """An object with a vocabulary that all others refer to too."""

    def __init__(self, words, vocabulary):
        self.words, self.vocabulary = words, vocabulary


TABLE = torch.arange(1_024 * 50.0).reshape(1_024, 50)
VOCABULARY = {f"word number {number}": number for number in range(5_000)}
BYTES, TEXT = bytes(100_000), "shared " * 3_000
OBJECTS = numpy.array([f"text number {number}" for number in range(50_000)], dtype=object)
ROWS = torch.arange(8.0 * 200).reshape(200, 8)
ARRAYS = [numpy.full(64, number, numpy.float32) for number in range(2_000)]


def shared_slice(turn):
    """Make a batch of half of a tensor that lies in shared memory."""
    data = torch.zeros(200_000, dtype=torch.uint8).share_memory_()
    data[::4096] = torch.arange(49)
    return [turn, data[turn % 2 * 100_000 :][:100_000]]


# What makes a batch with its number.
WEIGHED = {
    "columns": lambda turn: [turn, *TABLE.clone().unbind(1)],
    "vocabulary": lambda turn: [Sentence([turn, place], VOCABULARY) for place in range(64)],
    "same bytes": lambda turn: [turn, [BYTES] * 64],
    "same str": lambda turn: [turn, [TEXT] * 512],
    "object array": lambda turn: [turn, OBJECTS],
    "shared slices": shared_slice,
    "tensors": lambda turn: [turn, *(row.clone() for row in ROWS)],
    "arrays": lambda turn: [turn, *ARRAYS],
}


@quiet
@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", WEIGHED)
def test_a_slot_holds_little_more_than_torch_sends(name):
    """A batch fills as many pages as torch shares and pickles, whatever its leaves share."""
    batches = list(map(WEIGHED[name], range(3)))
    with open_loader(batches, num_workers=1, slots=1) as loader:
        assert 3 == sum(1 for _ in loader)

        assert loader.stats().resident_bytes <= 1.1 * sent_by_torch(batches[2]) + 3 * PAGES


# What is spilled.


@contextlib.contextmanager
def children(pids):
    """Ends these forked children with the block."""
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def fork_child():
    """Fork a child that holds what it inherits until it is killed."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


@pytest.mark.thorough
@quiet
def test_children_that_are_forked_spill_nothing():
    """With the defaults no batch is copied that a child reads for a while."""
    pids, pixels = [], torch.zeros(MB // 4)
    dataset = Made(40, lambda turn: [pixels.clone(), torch.full((64,), turn)])
    with open_loader(dataset) as loader, children(pids):
        for turn, batch in enumerate(loader):
            if turn % 4 == 1 and len(pids) < 8:
                pids.append(fork_child())
            del batch

        assert 0 == loader.stats().spilled
