"""Which thread may do what with an iterator: turns at next(), and close() at any moment."""

import threading
import time

import pytest
import torch

from shmloader import DataLoader
from tests.helpers.datasets import Computed, Numbered

pytestmark = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")

WIDTH = 1 << 19  # a spill of four such rows takes some milliseconds
TRIES = 12


def row(index):
    """Make a row of ones and more: none of its elements is zero."""
    return torch.full((WIDTH,), 1.0 + index)


def spill_until_closed(batches, wrong, errors):
    """Hold every batch, so that all but the first are copied out, and look at each."""
    held = []
    try:
        for made in batches:
            held.append(made)
            if not bool((made == made[:, :1]).all()) or bool((made == 0).any()):
                wrong.append(made[:, ::WIDTH])
    except RuntimeError as error:
        errors.append(str(error))


@pytest.mark.thorough
def test_close_while_another_thread_spills():
    """A batch that is copied out when the loader is closed is whole; next() says why it ends."""
    wrong, errors, messages = [], [], []
    for number in range(TRIES):
        loader = DataLoader(Computed(200, row), batch_size=4, num_workers=2, slots=3)
        batches = iter(loader)
        spiller = threading.Thread(target=spill_until_closed, args=(batches, wrong, errors))
        spiller.start()
        time.sleep(0.02 + 0.005 * (number % 7))
        loader.close()
        spiller.join()
        messages += errors
        errors.clear()
        # A slot that was freed twice would be given to two batches of the next epoch.
        del batches, spiller
        assert loader.held() == []

    assert wrong == []
    assert all("the loader was closed" in message for message in messages)
    assert messages


@pytest.mark.thorough
def test_close_ends_a_next_that_waits():
    """A next() that waits for a slow batch ends when another thread closes the loader."""
    go_on = threading.Event()

    def slow(index):
        time.sleep(20 if index == 4 else 0)
        return torch.tensor(index)

    loader = DataLoader(Computed(100, slow), batch_size=4, num_workers=1)
    batches = iter(loader)
    next(batches)
    said = []

    def wait():
        go_on.set()
        try:
            next(batches)
        except RuntimeError as error:
            said.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    go_on.wait()
    time.sleep(0.05)
    loader.close()
    waiting.join()

    assert len(said) == 1
    assert "call iter(loader)" in said[0]


def test_next_after_close_asks_for_no_more():
    """An iterator that was closed places nothing in a segment that another iterator has by now."""
    size, count = 4, 60
    loader = DataLoader(Numbered(size * count), batch_size=size, num_workers=2)
    old = iter(loader)
    next(old)
    old._shutdown_workers()
    new = iter(loader)
    made = []
    for each in new:
        made.append(each.clone())
        if len(made) % 5 == 0:
            with pytest.raises(RuntimeError, match="the loader was closed"):
                next(old)

    assert [int(each[0, 0]) // (1000 * size) for each in made] == list(range(count))
