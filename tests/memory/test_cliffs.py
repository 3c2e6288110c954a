"""
No cliff: batches of `python -m bench leaves --part batches`, by counts: pages, objects, spills.

That has their times beside torch's.
"""

import contextlib
import io
import os
import pickle
import signal
from functools import partial

import pytest
import torch

from bench.loads import wholes as loads
from shmloader import DataLoader

MB = 1_000_000
PAGES = 1 << 16  # what rounding to pages adds, and what the parts of a layout weigh

quiet = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")


def open_loader(load, **options):
    return DataLoader(**{"num_workers": 2, **load, **options})


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

        assert loader.stats().resident_bytes <= 1.1 * sent_by_torch(load["dataset"][2]) + 3 * PAGES


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
    load = loads.batches(40, lambda turn: [pixels.clone(), torch.full((64,), turn)])
    with open_loader(load) as loader, children(pids):
        for turn, batch in enumerate(loader):
            if turn % 4 == 1 and len(pids) < 8:
                pids.append(fork_child())
            del batch

        assert 0 == loader.stats().spilled
