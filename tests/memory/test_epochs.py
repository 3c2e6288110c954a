"""What a loader says of its epochs: times, workers, spills, and where it is now."""

import functools
import time

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

from shmloader import DataLoader
from shmloader.stats.history import History
from tests.helpers.datasets import Computed

OPTIONS = {"num_workers": 2, "batch_size": 4}


class Numbers(Computed):
    """Rows of their own index."""

    def __init__(self, count=40):
        super().__init__(count, functools.partial(torch.full, (8,)))


class Stream(IterableDataset):
    """Ten rows of each worker."""

    def __iter__(self):
        return iter(torch.arange(80.0).reshape(10, 8))


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_has_a_record(persistent):
    """Epochs are counted apart and together, and their times lie within the wall clock's."""
    started = time.perf_counter()
    with DataLoader(Numbers(), persistent_workers=persistent, **OPTIONS) as loader:
        for _ in range(3):
            assert 10 == sum(1 for _ in loader)
        elapsed_s = time.perf_counter() - started
        stats = loader.stats()

    assert [1, 2, 3] == [epoch.number for epoch in stats.epochs]
    for epoch in stats.epochs:
        assert epoch.is_over
        assert (10, 10, 2560) == (epoch.batches, epoch.length, epoch.bytes)
        assert (10, 10) == (epoch.next.count, epoch.step.count)
        assert 10 == sum(worker.batches for worker in epoch.workers)
        assert 2560 == sum(worker.bytes for worker in epoch.workers)
        assert 0 < epoch.next.p50_s <= epoch.next.p99_s <= epoch.next.longest_s
        assert epoch.next.longest_s <= epoch.next.total_s <= epoch.wall_s
        assert epoch.wait_s <= epoch.wall_s
        assert 0 < epoch.first_s <= epoch.wall_s
        assert ({}, 0) == (epoch.spills, epoch.restarts)
    assert (30, 30) == (stats.next.count, stats.step.count)
    assert 30 == sum(worker.batches for worker in stats.workers)
    assert stats.wait_s == pytest.approx(sum(epoch.wait_s for epoch in stats.epochs))
    assert stats.next.total_s == pytest.approx(sum(each.next.total_s for each in stats.epochs))
    assert sum(epoch.wall_s for epoch in stats.epochs) <= elapsed_s


def test_counts_never_go_back(monkeypatch):
    """Whoever looks on another thread sees an epoch that ends once: it runs, or has ended."""
    seen = []
    end = History.end

    def looked_at(history, epoch):
        seen.append(loader.stats())
        end(history, epoch)
        seen.append(loader.stats())

    monkeypatch.setattr(History, "end", looked_at)
    with DataLoader(Numbers(), persistent_workers=True, **OPTIONS) as loader:
        for _ in range(2):
            list(loader)

    assert [10, 10, 20, 20] == [stats.next.count for stats in seen[:4]]
    assert [1, 1, 2, 2] == [len(stats.epochs) for stats in seen[:4]]
    assert [False, True] * 2 == [stats.epochs[-1].is_over for stats in seen[:4]]


def test_an_epoch_that_ends_during_a_look_counts_once():
    """It was asked as one that runs, and has ended when the others are counted."""
    with DataLoader(Numbers(), **OPTIONS) as loader:
        list(loader)
        (done,) = loader.stats().epochs
    history = History()

    class Ending:
        def now(self):
            history.end(done)
            return done

    ending = Ending()
    assert done.number == history.begin(ending)
    assert done.next == history.times()[0]
    assert (done,) == history.epochs()


class Draws(BatchSampler):
    """A batch sampler of the user's, which may do anything in len()."""

    def __len__(self):
        raise AssertionError("len() of a sampler of the user's was called")


@pytest.mark.parametrize(
    ("length", "arguments"),
    [
        (10, {**OPTIONS, "dataset": Numbers()}),
        (10, {**OPTIONS, "dataset": Numbers(), "shuffle": True}),
        (9, {**OPTIONS, "dataset": Numbers(39), "drop_last": True}),
        (5, {"dataset": Numbers(5), "num_workers": 1, "batch_size": None}),
        (None, {**OPTIONS, "dataset": Stream()}),
        (
            None,
            {
                "dataset": Numbers(),
                "num_workers": 1,
                "batch_sampler": Draws(RandomSampler(Numbers()), 4, False),
            },
        ),
    ],
    ids=["in order", "shuffled", "last one dropped", "no batches", "iterable", "user's sampler"],
)
def test_length_is_said_if_it_is_known(length, arguments):
    """The length is arithmetic on torch's samplers; no code of the user's is called for it."""
    with DataLoader(**arguments) as loader:
        for _ in loader:
            pass
        assert length == loader.stats().epochs[-1].length


def fails_at_five(index):
    return 10 // (index - 5)


def test_a_workers_error_is_a_batch():
    """A batch that is an error counts as delivered, and the epoch goes on."""
    with DataLoader(Computed(8, fails_at_five), num_workers=1, batch_size=1) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        with pytest.raises(ZeroDivisionError, match="in DataLoader worker process"):
            next(iterator)
        next(iterator)
        epoch = loader.stats().epochs[-1]

    assert 7 == epoch.batches == epoch.next.count
