"""No cliff: batches that once took ten times torch's time, by their pages."""

import io
import pickle

import numpy
import pytest
import torch

from shmloader import DataLoader
from tests.helpers.datasets import identity

PAGES = 1 << 16  # what rounding to pages adds, and what the parts of a layout weigh


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


@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", WEIGHED)
def test_a_slot_holds_little_more_than_torch_sends(name):
    """A batch fills as many pages as torch shares and pickles, whatever its leaves share."""
    batches = list(map(WEIGHED[name], range(3)))
    options = {"batch_size": None, "collate_fn": identity, "num_workers": 1, "slots": 1}
    with DataLoader(batches, **options) as loader:
        assert 3 == sum(1 for _ in loader)

        assert loader.stats().resident_bytes <= 1.1 * sent_by_torch(batches[2]) + 3 * PAGES
