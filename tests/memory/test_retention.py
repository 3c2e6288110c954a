"""Invariant 5 on real loaders: nothing the user keeps can corrupt, stall or deadlock."""

import gc
import warnings

import pytest
import torch
from torch.utils.data import default_collate

from shmloader import DataLoader, RetentionWarning
from tests.helpers.datasets import Computed, Numbered, Stream, batch, state
from tests.helpers.warned import recorded

SIZE = 2
quiet = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")


def open_loader(batches, **options):
    settings = {"batch_size": SIZE, "num_workers": 1, "prefetch_factor": 2, "slots": 3}
    return DataLoader(Numbered(SIZE * batches), **{**settings, **options})


@pytest.mark.core(every=3)
@quiet
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("prefetch_factor", [1, 3])
@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9])
def test_every_number_of_slots_gives_the_whole_epoch(slots, prefetch_factor, workers):
    """One slot or more, for any depth and any number of workers: all batches, in order, held."""
    loader = open_loader(20, slots=slots, prefetch_factor=prefetch_factor, num_workers=workers)
    with loader:
        held = list(loader)
    assert len(held) == 20
    assert all(torch.equal(batch(number, SIZE), made) for number, made in enumerate(held))


@pytest.mark.thorough
@quiet
@pytest.mark.parametrize("persistent", [False, True])
def test_streams_on_fewer_slots_than_workers(persistent):
    """Workers of an iterable dataset that end at different times lose no slot, twice over."""
    loader = DataLoader(
        Stream(25), batch_size=None, num_workers=3, slots=2, persistent_workers=persistent
    )
    with loader:
        for _ in range(2):
            held = list(loader)
            assert sorted(made[0].item() / 1000 for made in held) == [*range(25)]


def test_spills_are_counted():
    """Held batches are spilled beyond the slots that can be spared, and stats say so."""
    with open_loader(10, slots=6) as loader:
        held = list(loader)
        assert state(loader, "leased") == 4
        assert loader.stats().spilled == 6
        assert {"too_few_slots": 6} == loader.stats().spills == loader.stats().epochs[-1].spills
        assert len(held) == loader.stats().batches == 10


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_one_warning_advises(persistent):
    """A loader that has to spill warns once in its life, at the line that iterates."""
    with (
        open_loader(60, persistent_workers=persistent) as loader,
        recorded() as caught,
    ):
        for _ in range(3):
            assert len(list(loader)) == 60
    assert [RetentionWarning] == [warning.category for warning in caught]
    assert caught[0].filename == __file__
    assert "raise slots (now 3)" in str(caught[0].message)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_warning_that_is_an_error_loses_no_batch(persistent):
    """If warnings are errors, next() raises one, once, and the next next() gives what was due."""
    with open_loader(40, persistent_workers=persistent) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        batches, held, raised = iter(loader), [], []
        while len(held) < 40:
            try:
                held.append(next(batches))
            except RetentionWarning:
                raised.append(len(held))
        assert [] == list(batches)
    assert 1 == len(raised)
    assert all(torch.equal(batch(number, SIZE), made) for number, made in enumerate(held))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "others", [[], [6000], [8100], [5000, 5000], [9600, *[64] * 10], [3000] * 4, [60_000, 7000]]
)
def test_small_batches_leave_their_slots_unsaid(others):
    """A loop that keeps 64 bytes of each is not warned, however small they are."""

    def make(index):
        return [torch.full((size,), index, dtype=torch.uint8) for size in (*others, 64)]

    with DataLoader(Computed(60, make), batch_size=None, num_workers=1, slots=6) as loader:
        kept = [made[-1] for made in loader]
        assert (0, {}) == (loader.stats().spilled, loader.stats().spills)
    assert [*range(60)] == [int(each[-1]) for each in kept]


@pytest.mark.thorough
@quiet
@pytest.mark.parametrize("persistent", [False, True])
def test_zero_copy_again_after_release(persistent):
    """Once the kept batches are dropped, no batch is spilled any more."""
    with open_loader(40, persistent_workers=persistent) as loader:
        held = list(loader)
        spilled = loader.stats().spilled
        assert spilled > 0
        held.clear()
        for number, made in enumerate(loader):
            assert torch.equal(batch(number, SIZE), made)
        assert spilled == loader.stats().spilled


def refer_back(samples):
    """Collate, and have the batch contain itself."""
    made = {"x": default_collate(samples)}
    made["self"] = made
    return made


@quiet
def test_batches_that_contain_themselves_may_be_kept():
    """All of them are right, in their slots or copied."""
    with open_loader(48, slots=8, collate_fn=refer_back) as loader:
        kept = list(loader)

    assert all(torch.equal(batch(number, SIZE), made["x"]) for number, made in enumerate(kept))
    kept.clear()
    gc.collect()
