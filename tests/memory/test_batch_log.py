"""What can be looked at while a loader runs: the records of its batches, and where workers are."""

import os
import time

import numpy
import pytest
import torch
from torch.utils.data import Dataset, Subset

from shmloader import DataLoader
from shmloader.cli.attach.process_facts import process
from shmloader.cli.attach.segments import look_into
from shmloader.core import BatchLog, view_layout
from shmloader.stats.layout import Layout
from shmloader.views.live import BUSY

LAYOUT = Layout(view_layout())


def notes_of(loader):
    """The notes in a loader's only segment."""
    (ledger,) = loader._service.pool._ledgers()
    return BatchLog(ledger)


def records_of(loader):
    """The records of the last batches, oldest first."""
    return LAYOUT.records(notes_of(loader).records())


class Slow(Dataset):
    """Rows, of which one takes long."""

    def __init__(self, slow, count=24, lasts_s=0.2):
        self.slow = slow
        self.count = count
        self.lasts_s = lasts_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.slow:
            time.sleep(self.lasts_s)
        return torch.full((3000,), index)


@pytest.mark.parametrize("batch_size", [4, None])
def test_moves_of_a_batch_are_in_order(batch_size):
    """Each batch has one record, and its times follow each other."""
    dataset = Slow(None)
    with DataLoader(dataset, num_workers=2, batch_size=batch_size) as loader:
        for batch in loader:
            del batch
        records = records_of(loader)

    count = len(dataset) // (batch_size or 1)
    assert list(range(count)) == list(records["ticket"])
    assert list(range(2, 2 * count + 2, 2)) == list(records["sequence"])
    names = ["taken", "fetched", "written", "returned", "released"]
    moves = numpy.stack([records[f"{name}_ns"] for name in names])
    assert (moves[:-1] <= moves[1:]).all()
    assert (records["asked_ns"] <= records["returned_ns"]).all()
    assert (records["parked_ns"] <= records["returned_ns"] - records["asked_ns"]).all()
    assert {24_000 * (batch_size or 1)} == set(records["bytes"])
    assert {0, 1} == set(records["worker"])
    assert {0} == set(records["spill"])


@pytest.mark.thorough
@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda it: Subset(it, range(24))])
def test_the_longest_sample_is_known(wrap):
    """The record of a batch names its slowest sample, by position and index."""
    with DataLoader(wrap(Slow(14)), num_workers=2, batch_size=4) as loader:
        list(loader)
        record = records_of(loader)[14 // 4]

    assert (14, 2, 4) == (
        record["longest_index"],
        record["longest_position"],
        record["samples"],
    )
    assert record["longest_ns"] > 100_000_000


class Forks(Dataset):
    """Forks in the middle of a batch; the child goes on with the rest of it."""

    def __init__(self, rest):
        self.rest = rest

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3 and os.fork() == 0:
            for _ in self.rest:
                pass
            os._exit(0)
        if index == 3:
            os.wait()
        return index


def test_a_workers_child_shows_nothing():
    """A process that user code forks says nothing in its parent's name."""
    with DataLoader(Forks(range(3)), num_workers=1, batch_size=8) as loader:
        list(loader)
        number, record = loader._service.pool.number, records_of(loader)[0]
        seen, _ = look_into(process(os.getpid()))
        ((worker,),) = [each.workers for each in seen if each.loader == number]

    assert BUSY != worker.state
    assert 8 == record["samples"]
