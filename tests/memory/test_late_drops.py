"""Loops that drop their batches late get slots for as many as they hold; loops that keep do not."""

import queue
import threading
from collections import deque

import pytest

from shmloader import DataLoader
from tests.helpers.datasets import Numbered, batch

BATCHES = 160
quiet = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")


def open_loader(**options):
    return DataLoader(Numbered(2 * BATCHES), batch_size=2, num_workers=2, **options)


def prefetch(loader, depth):
    """
    Yield batches that a thread has drawn ahead into a queue, as background prefetchers do.

    The thread is always as far ahead as it can be: how many are held at once is no matter of luck.
    """
    ahead, drawn = queue.Queue(depth), threading.Semaphore(0)

    def draw():
        for made in loader:
            drawn.release()
            ahead.put(made)
            del made
        drawn.release(depth + 1)
        ahead.put(None)

    thread = threading.Thread(target=draw)
    thread.start()
    for _ in range(depth):
        drawn.acquire()
    while drawn.acquire() and (made := ahead.get()) is not None:
        yield made
        del made
    thread.join()


def look_ahead(loader, depth):
    """Yield batches of which the next `depth` have been drawn already."""
    waiting = deque()
    for made in loader:
        waiting.append(made)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


def drop_in_groups(loader, depth):
    """Yield batches of which `depth` are collected and then dropped at once."""
    group = []
    for made in loader:
        group.append(made)
        yield made
        if len(group) == depth:
            group.clear()


def spills_of(loader, habit, depth):
    """Iterate once. Returns how many batches had been spilled after each."""
    spilled = []
    for number, made in enumerate(habit(loader, depth)):
        assert made.equal(batch(number, 2))
        del made
        spilled.append(loader.stats().spilled)
    assert len(spilled) == BATCHES
    return spilled


@pytest.mark.parametrize(
    ("habit", "depth"), [(prefetch, 2), (prefetch, 3), (look_ahead, 4), (drop_in_groups, 4)]
)
def test_usual_habits_spill_nothing(habit, depth):
    """The slots that there are by default are enough for them."""
    with open_loader() as loader:
        assert spills_of(loader, habit, depth)[-1] == 0


@pytest.mark.core(first=1)
@quiet
@pytest.mark.parametrize(
    ("habit", "depth"), [(prefetch, 6), (look_ahead, 8), (drop_in_groups, 8), (look_ahead, 12)]
)
def test_deep_habits_stop_spilling(habit, depth):
    """After some batches there are slots for all that is held, and none is copied out any more."""
    with open_loader() as loader:
        spilled = spills_of(loader, habit, depth)
        there = sum(loader.stats().slots.values())
        began = iter(loader)._transport.segment.shape
        assert there == began.slots + began.spares

    assert spilled[-1] == spilled[3 * BATCHES // 4]
