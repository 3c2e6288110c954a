"""
Code of users' classes that runs while objects are sent or kept: what it raises belongs to its call.

Whatever is raised, nothing else is lost: the next one is whole.
"""

import functools
import itertools

import pytest
import torch
from torch.utils.data import Dataset

import shmloader
from shmloader import DataLoader, SharedList, UnsendableBatch
from shmloader.core import PackedRecord, unpack_record
from tests.conformance import made
from tests.conformance.sources import identity, outcome


class Silent(ValueError):
    """An error that raises when it is asked for its text."""

    def __str__(self):
        raise LookupError("no text")


class Reducing(made.Raises):
    """An object that raises when it is asked how it is pickled."""

    def __reduce__(self):
        made.fail(self.error)


class Key(tuple):
    """A key that is built without an error, and cannot be hashed after that."""

    __slots__ = ()
    counts = True

    def __hash__(self):
        if self and Key.counts:
            made.fail(self[0])
        return 1


def with_key(error):
    Key.counts = False
    try:
        return {Key([error]): torch.ones(1)}
    finally:
        Key.counts = True


MAKES = {
    "reduced": functools.partial(Reducing, "reduced"),
    "pickled": functools.partial(made.Raises, "pickled"),
    "unpickled": functools.partial(made.Raises, "unpickled"),
    "hashed": with_key,
}
SENDING = ["reduced", "pickled"]
ERRORS = [ValueError, Silent, KeyboardInterrupt, made.Odd]
CASES = list(itertools.product(MAKES, ERRORS))
ORDINARY = [error for error in ERRORS if issubclass(error, Exception)]


class Samples(Dataset):
    """A sample whose code raises, and one that is whole."""

    def __init__(self, moment, error):
        self.make = functools.partial(MAKES[moment], error)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index > 1:
            raise IndexError
        return {"x": torch.ones(2), "it": "whole" if index else self.make()}


@pytest.mark.parametrize(("moment", "error"), CASES)
def test_a_record_raises_its_own_error(moment, error):
    """It comes out of the call that writes the record, or reads it; others are written and read."""
    samples = Samples(moment, error)

    def call():
        return unpack_record(PackedRecord(samples[0]).tobytes())

    assert error is outcome(call)
    if moment in SENDING:
        assert error is outcome(lambda: SharedList(samples))
        return
    records = SharedList(samples)
    assert error is outcome(lambda: records[0])
    assert "whole" == records[1]["it"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("moment", "error"), CASES)
def test_a_sample_that_cannot_be_kept_is_the_sample(moment, error):
    """`cached()` returns what the dataset did; what is no Exception comes out of its own call."""
    kept = shmloader.cached(Samples(moment, error), max_bytes=1 << 20)
    first = outcome(lambda: kept[0])

    assert type(first) is dict if error in ORDINARY else first is error
    assert "whole" == kept[1]["it"] == kept[1]["it"]


@pytest.mark.core(values=1)
@pytest.mark.parametrize(("moment", "error"), CASES)
def test_a_batch_raises_its_own_error(moment, error):
    """An error of sending names the leaf, one of reading is the object's own; the next arrives."""
    loader = DataLoader(
        Samples(moment, error), None, collate_fn=identity, num_workers=1, timeout=60, slots=1
    )
    batches = iter(loader)

    assert outcome(lambda: next(batches)) is (UnsendableBatch if moment in SENDING else error)
    assert "whole" == next(batches)["it"]
    assert [] == list(batches)
    assert 1 == loader.stats().slots["free"]
