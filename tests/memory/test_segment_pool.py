"""Segments between epochs: which one is lent again, and which counts outlive one."""

import pytest

from shmloader.core import Figures
from shmloader.memory.segment import Shape
from shmloader.memory.segment_pool import SegmentPool
from shmloader.stats import Stats

SHAPE = Shape(1, 2, 1 << 20, 1 << 20)


@pytest.fixture
def pool():
    """Returns a pool, emptied afterwards."""
    pool = SegmentPool()
    yield pool
    pool.clear()


def test_a_released_segment_is_lent_again(pool):
    """The next iterator of the same shape gets the segment that the last one had."""
    first = pool.acquire(SHAPE)
    pool.release(first)

    again = pool.acquire(SHAPE)
    assert first is again
    pool.release(again)


@pytest.mark.parametrize("field", ["workers", "slots", "ring_bytes"])
def test_another_shape_gets_another_segment(pool, field):
    """A segment of another shape is not lent: the loader's options were changed, so it is gone."""
    first = pool.acquire(SHAPE)
    pool.release(first)
    values = {name: getattr(SHAPE, name) for name in ("workers", "slots", "ring_bytes")}
    values[field] *= 2
    other = pool.acquire(Shape(*values.values(), values["ring_bytes"]))

    assert other is not first
    with pytest.raises(AttributeError):
        _ = first.ledger  # it was closed
    pool.release(other)


def test_segments_in_use_are_not_shared(pool):
    """Two iterators that live at once have a segment each."""
    segments = [pool.acquire(SHAPE), pool.acquire(SHAPE)]

    assert segments[0] is not segments[1]
    for segment in segments:
        pool.release(segment)


@pytest.mark.parametrize("way", ["discarded", "without pages"])
def test_some_segments_are_never_lent_again(way):
    """A segment that a worker may still write to is gone, and so is one without kept pages."""
    pool = SegmentPool(keep_pages=way != "without pages")
    first = pool.acquire(SHAPE)
    (pool.discard if way == "discarded" else pool.release)(first)

    second = pool.acquire(SHAPE)
    assert first is not second
    pool.discard(second)


def test_counts_outlive_their_segment():
    """The counts of a segment outlive it, its pages do not."""
    pool = SegmentPool()
    segment = pool.acquire(SHAPE)
    for _ in range(3):
        Figures(segment.ledger).note_restart()
    before = pool.stats()
    pool.discard(segment)
    after = pool.stats()

    assert (3, 3) == (before.restarts, after.restarts)
    assert (2, {}, 0) == (before.slots["free"], after.slots, after.resident_bytes)


def test_an_empty_pool_counts_nothing(pool):
    """A pool without segments has nothing held and nothing counted."""
    assert (Stats(), []) == (pool.stats(), pool.held())
