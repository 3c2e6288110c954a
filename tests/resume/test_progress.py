"""What takes long before a resumed epoch goes on is told now and then, with what is left of it."""

import logging
import re
import time
import warnings
from types import SimpleNamespace

import pytest
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, get_worker_info

from shmloader import DataLoader
from shmloader.core import replay
from shmloader.order import telling
from shmloader.trainer.tasks import BatchWait

BATCHES, DONE = 40, 30


class Slow(IterableDataset):
    """Has no state, and takes its time."""

    def __iter__(self):
        info = get_worker_info()
        for number in range(BATCHES // (info.num_workers if info else 1)):
            time.sleep(0.01)
            yield number


class Sampler(BatchSampler):
    """A user's, which only its own code can iterate."""

    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.01)
            yield batch


@pytest.fixture
def told(caplog, monkeypatch):
    """Lines about what is done again, which come more often here."""
    monkeypatch.setattr(telling, "_EVERY_S", 0.02)
    caplog.set_level(logging.DEBUG, logger="shmloader")
    return lambda: [
        re.fullmatch(r"resuming: (.*) (\d+) of (\d+) batches again; (\d+) s left", line)
        for line in caplog.messages
        if line.startswith("resuming")
    ]


def go_on(open_loader):
    """Go on at a place, and take one batch."""
    with open_loader() as loader:
        iterator = iter(loader)
        for _ in range(DONE):
            next(iterator)
        state = loader.state_dict()
        iterator = None
    with open_loader() as loader:
        with warnings.catch_warnings(action="ignore"):
            loader.load_state_dict(state)
        next(iter(loader))


def check(found, what, total):
    """Each line is of the same thing, and farther than the one before."""
    assert found
    assert {(what, str(total))} == {(each[1], each[3]) for each in found}
    done = [int(each[2]) for each in found]
    assert sorted(set(done)) == done
    assert done[-1] <= total


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset(told, workers):
    """In workers it is the one that has most to fetch again."""
    options = {"batch_size": None, "num_workers": workers, "seed_by": "batch"}
    go_on(lambda: DataLoader(Slow(), **options))

    check(told(), "the dataset without state_dict() has yielded", DONE // max(1, workers))


@pytest.mark.thorough
def test_a_users_sampler(told, monkeypatch):
    """It is asked for again without fetching."""
    # Looks at the clock are a second apart; here each is of one request.
    monkeypatch.setattr(
        "shmloader.order.resuming.drawing.replay",
        lambda requests, first, high, *rest: replay(requests, first, first + 1, *rest),
    )

    def open_loader():
        sampler = Sampler(SequentialSampler(range(BATCHES)), 1, False)
        return DataLoader(range(BATCHES), batch_sampler=sampler, seed_by="batch")

    go_on(open_loader)

    check(told(), "the sampler has drawn", DONE)


@pytest.mark.thorough
def test_a_slow_sampler_does_not_keep_the_caller():
    """A replay returns after a second, however few requests that were."""

    def slowly():
        for number in range(100):
            time.sleep(0.6)
            yield [number]

    number, _ = replay(slowly(), 0, 100, set(), [])

    assert 0 < number < 100


def test_the_worker_with_most_to_fetch_again_is_told_of(told):
    """Not the one that has most in all."""
    notes = SimpleNamespace(replayed=lambda worker: [(25, 30), (2, 20)][worker])
    waiting = BatchWait(None, SimpleNamespace(heals=False, notes=notes), None, None)
    waiting.replaying = {0, 1}
    deadline = time.monotonic() + 20
    while not told() and time.monotonic() < deadline:
        waiting.parked()
        time.sleep(0.01)

    assert ("2", "20") == told()[0].group(2, 3)


def test_nothing_is_told_of_a_short_one(told, monkeypatch):
    """What takes less than five seconds is no news."""
    monkeypatch.setattr(telling, "_EVERY_S", 5.0)
    go_on(lambda: DataLoader(Slow(), batch_size=None, num_workers=0, seed_by="batch"))

    assert [] == told()
