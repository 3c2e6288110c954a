"""What is shown of a resumed epoch: where the training is in it, and what this run did of it."""

import os
import time

import pytest

from shmloader import DataLoader
from shmloader.cli.attach.process_facts import process
from shmloader.cli.attach.trainers import LiveTrainer
from shmloader.cli.top.as_json import as_record
from shmloader.cli.top.text import lines_of
from shmloader.views import live
from tests.helpers.datasets import Iterated
from tests.helpers.looks import LAYOUT, reader_of

BATCHES, DONE = 50, 35


def seen(iterator):
    """Look at a loader as `top` does."""
    descriptor = iterator._running.segment.descriptor
    total_bytes = os.fstat(descriptor).st_size
    plate = live.read_plate(reader_of(descriptor), total_bytes, LAYOUT)
    return live.read_loader(reader_of(descriptor), plate, LAYOUT, time.monotonic_ns())


def use_up(iterator):
    """Take all batches, and keep none."""
    for _ in iterator:
        pass


def resumed(loader):
    """Load the state of a run that was interrupted, and take three batches more."""
    iterator = iter(loader)
    for _ in range(DONE):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    return iterator


@pytest.mark.thorough
@pytest.mark.parametrize("in_order", [True, False])
def test_progress_is_the_epochs(in_order):
    """The place counts all batches; everything else counts those of this run."""
    options = {"num_workers": 2, "seed_by": "batch", "in_order": in_order}
    with DataLoader(range(4 * BATCHES), 4, **options) as loader:
        iterator = resumed(loader)
        found, epoch = seen(iterator), loader.stats().epochs[-1]
        (line,) = [
            line.text
            for line in lines_of([LiveTrainer(process(os.getpid()), False, (found,))])
            if "epoch" in line.text and "batch " in line.text
        ]
        record = as_record([LiveTrainer(process(os.getpid()), False, (found,))])
        assert (DONE + 3, BATCHES) == (found.batch, found.length)
        assert f"batch {DONE + 3} of {BATCHES}" in line
        assert DONE + 3 == record["trainers"][0]["loaders"][0]["batch"]
        assert (DONE, 3, BATCHES) == (epoch.resumed_at, epoch.batches, epoch.length)
        assert 3 == epoch.next.count == len(found.records[found.records["epoch"] == epoch.number])

        use_up(iterator)
        epoch = loader.stats().epochs[-1]
        assert BATCHES == epoch.resumed_at + epoch.batches
        iterator = iter(loader)
        assert (0, BATCHES) == (seen(iterator).batch, seen(iterator).length)
        use_up(iterator)
        epoch = loader.stats().epochs[-1]
        assert (0, BATCHES) == (epoch.resumed_at, epoch.batches)


@pytest.mark.filterwarnings("ignore:no state of Iterated was saved")
def test_progress_of_an_iterable_dataset():
    """Batches of all workers are counted, those that were fetched again are not."""
    with DataLoader(
        Iterated(lambda: range(2 * BATCHES)), 4, num_workers=2, seed_by="batch"
    ) as loader:
        iterator = resumed(loader)
        epoch = loader.stats().epochs[-1]

        assert (DONE + 3, None) == (seen(iterator).batch, seen(iterator).length)
        assert (DONE, 3) == (epoch.resumed_at, epoch.batches)
