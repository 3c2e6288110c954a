"""
Copies into shared memory, plain and streaming: the source of the threshold in csrc/copy.h.

Source and target move on with every copy, through more memory than a cache holds, as samples and
slots do. At small sizes the time of a call from Python is part of the figure, alike for both.
"""

import mmap

import numpy
import pytest

from bench import native

REGION_BYTES = 256 << 20
SIZES = [4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20]
COPIES_BYTES = 64 << 20  # per benchmark, in copies of one size


@pytest.fixture(scope="module")
def regions():
    """A private region of random bytes and a shared one, both touched: uint8 (REGION_BYTES,)."""
    block = numpy.random.default_rng(0).integers(0, 256, 1 << 20, numpy.uint8)
    source = numpy.tile(block, REGION_BYTES >> 20)
    target = numpy.frombuffer(mmap.mmap(-1, REGION_BYTES), numpy.uint8)
    target[:] = 0
    return source, target


@pytest.mark.benchmark(group="copy")
@pytest.mark.parametrize("size_bytes", SIZES, ids=lambda size: f"{size >> 10}KiB")
@pytest.mark.parametrize("way", ["plain", "stream"])
def test_copy(benchmark, regions, way, size_bytes):
    """All bytes arrive, by either way."""
    source, target = regions
    target[:] = 0
    copy = getattr(native.load(), f"copy_{way}")
    starts = iter(range(0, REGION_BYTES, size_bytes))

    def next_addresses():
        start = next(starts)
        return (target.ctypes.data + start, source.ctypes.data + start, size_bytes), {}

    rounds = max(COPIES_BYTES // size_bytes, 6)
    benchmark.pedantic(copy, setup=next_addresses, rounds=rounds)

    copied = REGION_BYTES if benchmark.stats is None else rounds * size_bytes
    assert benchmark.stats is None or numpy.array_equal(source[:copied], target[:copied])
