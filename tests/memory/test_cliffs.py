"""
No cliff: the programs of `make cliffs`, small and by counts: pages and spills.

`make cliffs` has their times and memory beside torch's.
"""

import io
import pickle
from functools import partial

import pytest
import torch

from bench.loads import wholes as loads
from bench.questions.cliffs import uses
from shmloader import DataLoader

MB = 1_000_000
PAGES = 1 << 16  # what rounding to pages adds, and what the parts of a layout weigh

quiet = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")


def open_loader(load, **options):
    return DataLoader(load.dataset, **{"num_workers": 2, **load.arguments, **options})


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


WEIGHED = {
    "columns": partial(loads.columns, 3, 1_024, 50),
    "vocabulary": partial(loads.vocabulary, 3),
    "same bytes": partial(loads.same, 3, bytes(100_000), 64),
    "same str": partial(loads.same, 3, "shared " * 3_000, 512),
    "object array": partial(loads.object_array, 3),
    "shared slices": partial(loads.shared_slices, 3, 100_000),
    "tensors": partial(loads.many_tensors, 3, 200),
    "arrays": partial(loads.many_arrays, 3, 2_000),
}


@quiet
@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", WEIGHED)
def test_a_slot_holds_little_more_than_torch_sends(name):
    """A batch fills as many pages as torch shares and pickles, whatever its leaves share."""
    load = WEIGHED[name]()
    with open_loader(load, num_workers=1, slots=1) as loader:
        assert 3 == sum(1 for _ in loader)

        assert loader.stats().resident_bytes <= 1.1 * sent_by_torch(load.dataset[2]) + 3 * PAGES


# What is spilled.


@pytest.mark.thorough
@quiet
def test_children_that_are_forked_spill_nothing():
    """With the defaults no batch is copied that a child reads for a while."""
    with open_loader(loads.images(40, MB)) as loader:
        kept = uses.fork_children(loader)
        spilled = loader.stats().spilled
        del kept

    assert 0 == spilled
