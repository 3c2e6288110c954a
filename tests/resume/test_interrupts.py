"""No interrupt between two bytecodes parts a batch from its count, or an epoch from its draws."""

import contextlib
import functools
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import dataloader, get_worker_info

from shmloader import DataLoader
from shmloader.order.resuming.states import read
from tests.helpers.datasets import Computed, Iterated
from tests.helpers.interrupts import PACKAGE, Interrupt, Interrupter, interrupted_once

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*the random numbers of the dataset begin again"),
    # If an interrupt hits the very line of a `with`, the collector closes what stays open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TORCHS = str(Path(dataloader.__file__).parent)
COUNT = 3000


def failing(number):
    """A number, or an error, of which some are left out."""
    if number % 7 == 3:
        raise LookupError(number)
    return number


def delivered_by(state):
    """List the numbers of the batches that a state holds."""
    known = read(state)
    return sorted(set(range(known.drawn)) - set(known.missing))


def number_in(error):
    return int(str(error).strip().rpartition("LookupError: ")[2])


def take(iterator):
    """Return the number of the next batch, or of the error in its place; None at the end."""
    try:
        return int(next(iterator))
    except StopIteration:
        return None
    except LookupError as error:
        return number_in(error)


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "in_order": False}],
    ids=["alone", "workers", "unordered"],
)
def test_a_batch_counts_if_and_only_if_it_was_returned(options):
    """
    Wherever next() is interrupted, the state has what the loop had, a resumed run the rest.

    An epoch that goes on loses at most one batch by each interrupt.
    """
    interrupter = Interrupter(event="opcode", folders=(PACKAGE, TORCHS))
    seen, calm = [], 0
    as_delivered = sorted if options.get("in_order") is False else list
    with DataLoader(Computed(COUNT, failing), None, **options) as loader:
        iterator = iter(loader)
        while calm < 20:
            before = interrupter.target
            with contextlib.suppress(Interrupt), interrupter:
                seen.append(take(iterator))
            calm = 0 if interrupter.target > before else calm + 1
            state = loader.state_dict()
            assert as_delivered(seen) == delivered_by(state), interrupter.target
        others = list(iter(functools.partial(take, iterator), None))
    with DataLoader(Computed(COUNT, failing), None, **options) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        rest = [take(iterator) for _ in range(COUNT - len(seen))]
        assert take(iterator) is None

    assert len(seen + others) == len({*seen, *others}) > COUNT - interrupter.target
    assert 100 < interrupter.target
    assert list(range(COUNT)) == sorted(seen + rest)


def shuffled(seed, workers=0):
    torch.manual_seed(seed)
    return DataLoader(range(12), 2, shuffle=True, num_workers=workers)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("epochs", [0, 1])
def test_an_interrupted_iter_has_drawn_nothing(workers, epochs):
    """Wherever iter() was interrupted, a resumed run has the epoch that it would have begun."""
    with shuffled(0) as loader:
        *_, expected = [[batch.tolist() for batch in loader] for _ in range(epochs + 1)]
    rooms = (f"{PACKAGE}/order", f"{PACKAGE}/trainer")  # the others open descriptors
    interrupter = Interrupter(event="opcode", folders=rooms, step=301 if workers else 29)
    interrupted = True
    while interrupted:
        with shuffled(0, workers) as loader, shuffled(1) as other:
            torch.manual_seed(0)
            for _ in range(epochs):
                list(loader)
            try:
                with interrupter:
                    iter(loader)
                interrupted = False
            except Interrupt:
                other.load_state_dict(loader.state_dict())

                assert expected == [batch.tolist() for batch in other], interrupter.target
    assert 300 < interrupter.target


def slow(number):
    """A number for which the training process parks."""
    time.sleep(0.02)
    return number


class InterruptedOnce(dict):
    """A record from which the first key to go does not: an interrupt comes in its place."""

    is_interrupted = False

    def __delitem__(self, key):
        if not self.is_interrupted:
            self.is_interrupted = True
            raise Interrupt
        super().__delitem__(key)


@pytest.mark.thorough
def test_a_batch_that_two_interrupts_lost_does_not_come_late(monkeypatch):
    """The first as it was received, the second as it was delivered: torch waits for it no more."""
    with DataLoader(Computed(12, slow), None, num_workers=1) as loader:
        iterator = iter(loader)
        seen = [int(next(iterator))]
        transport = iterator._transport
        transport._keys = InterruptedOnce(transport._keys)
        with pytest.raises(Interrupt):
            next(iterator)
        with monkeypatch.context() as patch, pytest.raises(Interrupt):
            patch.setattr(iterator._delivery, "deliver", Mock(side_effect=Interrupt))
            next(iterator)
        seen += map(int, iterator)

    assert [0, *range(2, 12)] == seen


@pytest.mark.core(first=1)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("comes_after", [True, False], ids=["known", "unknown"])
def test_a_batch_that_was_received_comes_after_an_interrupt(monkeypatch, in_order, comes_after):
    """Taken from the rings, and known to the transport or not, it is found again in its place."""
    with DataLoader(Computed(12, slow), None, num_workers=2, in_order=in_order) as loader:
        iterator = iter(loader)
        seen = [int(next(iterator))]
        transport = iterator._transport
        name = "receive" if comes_after else "_accepts"
        function = interrupted_once(getattr(transport, name), comes_after)
        monkeypatch.setattr(transport, name, function)
        with pytest.raises(Interrupt):
            while True:
                seen.append(int(next(iterator)))
        seen += map(int, iterator)

    assert list(range(12)) == (seen if in_order else sorted(seen))


def test_batches_that_interrupts_lost_leave_the_others(monkeypatch):
    """As many are lost as were asked for ahead, and all the others come."""
    with DataLoader(Computed(12, slow), None, num_workers=1, prefetch_factor=2) as loader:
        iterator = iter(loader)
        seen = [int(next(iterator))]
        with monkeypatch.context() as patch:
            patch.setattr(iterator._delivery, "deliver", Mock(side_effect=Interrupt))
            for _ in range(4):
                with pytest.raises(Interrupt):
                    next(iterator)
        seen += map(int, iterator)

    assert [0, *range(5, 12)] == seen


@pytest.mark.parametrize("persistent", [False, True])
def test_counting_anew_bears_workers_at_their_ends(persistent):
    """As after an interrupt in each next(): torch's bound of outstanding tasks is kept."""
    options = {"num_workers": 2, "persistent_workers": persistent}
    uneven = Iterated(lambda: range(20 if get_worker_info().id else 1))
    with DataLoader(uneven, None, **options) as loader:
        iterator, found = iter(loader), []
        while (number := next(iterator, None)) is not None:
            found.append(number)
            iterator._is_behind = True

    assert sorted([0, *range(20)]) == sorted(found)
