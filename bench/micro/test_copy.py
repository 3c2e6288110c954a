"""
Copies: plain and streaming into shared memory, and one batch's tensor into pinned memory.

The first are the source of the threshold in csrc/copy.h. The others are what `pin_memory=True` does
with a batch in `next()`, by torch and by ours; the memory is made before, as torch's allocator
keeps it, and without an accelerator it is not page-locked, which the processor does not mind. Other
threads wait for Python's lock in neither way.

Source and target move on with every copy, through more memory than a cache holds, as samples and
slots do. At small sizes the time of a call from Python is part of the figure, alike for all.
Each run compiles `../native` and csrc/copy.c with the machine's C compiler.
"""

import mmap

import pytest
import torch

from bench import native
from shmloader.core import copy_tensor

REGION_BYTES = 256 << 20
SIZES = [4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20]
PINNED_SIZES = [64 << 10, 1 << 20, 4 << 20, 38_535_168]
COPIES_BYTES = 64 << 20  # per benchmark, in copies of one size


@pytest.fixture(scope="module")
def regions():
    """A private region of random bytes and a shared one, both touched: uint8 (REGION_BYTES,)."""
    source = torch.randint(256, (1 << 20,), dtype=torch.uint8).repeat(REGION_BYTES >> 20)
    return source, torch.frombuffer(mmap.mmap(-1, REGION_BYTES), dtype=torch.uint8).zero_()


def by_address(way):
    copy = getattr(native.load(), f"copy_{way}")
    return lambda target, source: copy(target.data_ptr(), source.data_ptr(), source.nbytes)


WAYS = {
    "plain": lambda: by_address("plain"),
    "stream": lambda: by_address("stream"),
    "torch": lambda: torch.Tensor.copy_,
    "ours": lambda: copy_tensor,
}
CASES = [("copy", way, size) for way in ("plain", "stream") for size in SIZES]
CASES += [("pin", way, size) for way in ("torch", "ours") for size in PINNED_SIZES]


@pytest.mark.parametrize(
    ("group", "way", "size_bytes"),
    CASES,
    ids=lambda part: part if isinstance(part, str) else f"{part >> 10}KiB",
)
def test_copy(benchmark, regions, group, way, size_bytes):
    """All bytes arrive, by any way, on one core."""
    source, target = regions
    target.zero_()
    benchmark.group = group
    starts = iter(range(0, REGION_BYTES - size_bytes + 1, size_bytes))

    def next_parts():
        part = slice(start := next(starts), start + size_bytes)
        return (target[part], source[part]), {}

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as torch's pin thread does
    rounds = min(REGION_BYTES // size_bytes, max(COPIES_BYTES // size_bytes, 6))
    try:
        benchmark.pedantic(WAYS[way](), setup=next_parts, rounds=rounds)
    finally:
        torch.set_num_threads(threads)

    copied = rounds * size_bytes if benchmark.stats is not None else size_bytes
    assert torch.equal(source[:copied], target[:copied])
