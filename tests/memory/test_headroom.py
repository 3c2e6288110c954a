"""What the trainer adds to memory itself is looked at before: the kernel would kill it."""

import itertools

import numpy
import pytest
import torch

from shmloader import DataLoader, OutOfSharedMemory, Pool
from shmloader.memory import limits
from tests.helpers.datasets import Computed
from tests.pool import functions

MB = 1_000_000


@pytest.fixture
def left(monkeypatch):
    """Have so many bytes left, whatever a look finds; returns the looks, and what sets it."""
    looks, now = [], [1 << 40]

    def available():
        looks.append(now[0]() if callable(now[0]) else now[0])
        return limits.Available(looks[-1], "in a test")

    monkeypatch.setattr(limits, "available", available)
    monkeypatch.setattr(limits, "available_bytes", lambda: available().bytes)
    return looks, lambda found: now.__setitem__(0, found)


def test_there_is_no_look_while_little_is_added(left):
    """An eighth of what was left may be added after a look, then there is another one."""
    looks, leave = left
    leave(800 * MB)
    room = limits.Headroom()

    assert all(room.has(10 * MB) for _ in range(19))
    assert 2 == len(looks)


def test_a_look_keeps_a_reserve(left):
    """What others need must be left, too; and an error can say what was found."""
    _, leave = left
    leave(60 * MB)
    room = limits.Headroom()

    assert [False, True] == [room.has(60 * MB, reserve) for reserve in (1, 0)]
    assert "60.0 MB are left to process" in room.left()


@pytest.mark.thorough
def test_a_call_without_room_fails_alone(left):
    """It says what it lacks and what is left, and the pool goes on."""
    _, leave = left
    leave(50 * MB)
    with Pool(2, "fork") as pool:
        asked = [pool.submit(functions.same, numpy.zeros(size * MB)) for size in (7, 0)]
        with pytest.raises(OutOfSharedMemory, match=r"lacks 56.0 MB .* 50.0 MB are left"):
            asked[0].result(timeout=20)
        assert 0 == asked[1].result(timeout=20).size


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")
def test_a_batch_that_cannot_be_copied_out_is_an_error(left):
    """Kept batches end in an error with numbers; small ones and later ones come."""
    _, leave = left
    leave(40 * MB)
    dataset = Computed(40, lambda index: torch.full((2 * MB,), index, dtype=torch.uint8))
    with DataLoader(dataset, batch_size=None, num_workers=1) as loader:
        batches = iter(loader)
        kept = list(itertools.islice(batches, 20))
        leave(MB)
        with pytest.raises(
            OutOfSharedMemory, match=r"of 2.0 MB .*more batches are held.* 1.0 MB are"
        ):
            kept.extend(batches)
        leave(40 * MB)
        count = len(kept)
        kept.append(next(batches))
    assert [*range(count), count + 1] == [int(each[-1]) for each in kept]


def test_looks_come_by_what_was_delivered(left):
    """A loop may keep all that it gets: there is a look for each eighth of what was left."""
    looks, leave = left
    leave(80 * MB)
    dataset = Computed(60, lambda index: torch.zeros(5 * MB, dtype=torch.uint8))
    with DataLoader(dataset, batch_size=None, num_workers=1) as loader:
        for _ in loader:
            pass
    assert len(looks) >= (300 - 70) / 10 - 2
