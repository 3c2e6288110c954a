"""Iterable datasets go on where they were: by their state, or by fetching again."""

import pytest
import torch
from torch.utils.data import IterableDataset

from shmloader import DataLoader
from tests.helpers.warned import recorded
from tests.resume.interrupted import (
    BATCH,
    Counting,
    Drawing,
    Placed,
    Run,
    Stream,
    left,
    opened,
    quiet,
    resumed,
    stored,
    undisturbed,
)

KINDS = {"no state": Stream, "an iterator's": Placed, "a dataset's": Counting}
POSITIONS = (0, 1, 3, 5, 8, 9)


def compare(kind, options, positions=POSITIONS, epochs=1):
    """Compare resumed runs with the undisturbed one."""
    run = Run(kind, options)
    expected = undisturbed(run, epochs)
    for position in positions:
        if position <= len(expected):
            assert expected == resumed(run, run, position, epochs), position


@pytest.mark.thorough
@pytest.mark.parametrize("seed_by", ["worker", "batch"])
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_each_kind_goes_on(kind, seed_by, resumable, workers):
    """Uneven shards, whose order was drawn when they were begun, with draws in each sample."""
    options = {"seed_by": seed_by, "resumable": resumable, "num_workers": workers}
    compare(KINDS[kind], options)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Placed, Counting])
@pytest.mark.parametrize("seed_by", ["worker", "batch"])
def test_workers_that_live_on(kind, seed_by):
    """In a later epoch the draws and the dataset's state go on from those of the epoch before."""
    options = {"seed_by": seed_by, "resumable": True, "num_workers": 2}
    compare(kind, {**options, "persistent_workers": True}, (3, 9, 10, 13, 14), epochs=3)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_without_workers(kind):
    """With seed_by="batch" draws are the batch's there too, and those of the next epochs."""
    # One that draws when it is begun draws from the training's own generators there.
    epochs = 1 if KINDS[kind] is Placed else 3
    compare(KINDS[kind], {"num_workers": 0}, (0, 1, 5, 9, 10, 14), epochs)


class CountsItsEpochs(IterableDataset):
    """Shuffles anew each time that it is begun."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(self.epoch))
        self.epoch += 1
        return iter(order.tolist())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_is_begun_once(workers):
    """Its epoch is the one of an undisturbed run, without workers too, and so is the next one."""
    options = {"batch_size": 5, "num_workers": workers}
    with DataLoader(CountsItsEpochs(), **options) as loader:
        first = iter(loader)
        next(first)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in first]
        following = [batch.tolist() for batch in loader]
    with DataLoader(CountsItsEpochs(), **options) as loader, quiet():
        loader.load_state_dict(stored(state))
        again = [batch.tolist() for batch in loader]

        assert rest == again
        assert following == [batch.tolist() for batch in loader]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Stream, "up to 2 batches are fetched again in each worker before batch 4 is delivered"),
        (Stream, r"give Stream, or its iterator, state_dict\(\) and .*, and pass resumable=True$"),
        (Counting, "the first time: pass resumable=True$"),  # not to have the methods that it has
    ],
)
def test_fetching_again_is_said_with_its_batches(kind, words):
    """A warning says how many each worker fetches again, before which one, and what to do."""
    state, _ = left(opened(kind(), {"num_workers": 2}), 4)
    with opened(kind(), {"num_workers": 2}) as loader, pytest.warns(UserWarning, match=words):
        loader.load_state_dict(stored(state))


@pytest.mark.parametrize(("kind", "name"), [(Counting, "dataset"), (Placed, "iterator")])
def test_what_a_dataset_tells_is_in_the_state_as_it_is(kind, name):
    """It is not in bytes of this package, which nothing else could read."""
    state, _ = left(opened(kind(), {"num_workers": 1, "resumable": True}), 2)
    (told,) = state["worker_states"]

    assert (None, 2 * BATCH) == (told["snapshot"], told[name]["at"])


@pytest.mark.parametrize("seed_by", ["worker", "batch"])
@pytest.mark.parametrize("resumable", [False, True])
def test_a_state_that_is_lost_at_the_edge_of_an_epoch_is_said(seed_by, resumable):
    """Workers that lived on had it, and only resumable=True saves it."""
    options = {"num_workers": 1, "persistent_workers": True, "resumable": resumable}
    with opened(Counting(), {**options, "seed_by": seed_by}) as loader:
        list(loader)
        iterator = iter(loader)
        state = stored(loader.state_dict())
        del iterator
    with opened(Counting(), {**options, "seed_by": seed_by}) as loader, recorded() as warned:
        loader.load_state_dict(state)

    said = [each for each in warned if "this state does not contain" in str(each.message)]
    assert len(said) == (not resumable)


def test_another_number_of_workers_is_refused():
    """Shards depend on it: the error names both."""
    state, _ = left(DataLoader(Stream(), 3, num_workers=2))
    with (
        DataLoader(Stream(), 3, num_workers=3) as loader,
        pytest.raises(ValueError, match=r"num_workers=2, and here it is 3"),
    ):
        loader.load_state_dict(state)


def test_a_map_style_dataset_is_no_iterable_one():
    """The states of one are refused by the other."""
    with DataLoader(Stream(), 3) as loader:
        state = loader.state_dict()
    with DataLoader(Drawing(), 3) as loader, pytest.raises(ValueError, match="saved with"):
        loader.load_state_dict(state)
