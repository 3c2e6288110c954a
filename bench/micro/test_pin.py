"""
Copies of one batch's tensor into memory as torch's pinned memory is: by torch, and by ours.

That is what `pin_memory=True` does with a batch in `next()`. The memory is made before, as torch's
allocator keeps it; without an accelerator it is not page-locked, which the processor does not mind.
Source and target move on with every copy, as in test_copy.py. Other threads wait for Python's lock
in neither way.
"""

import pytest
import torch

from shmloader.core import copy_tensor

REGION_BYTES = 256 << 20
SIZES = [64 << 10, 1 << 20, 4 << 20, 38_535_168]


@pytest.fixture(scope="module")
def regions():
    """A region of random bytes and one to copy to, both touched: uint8 (REGION_BYTES,)."""
    source = torch.randint(256, (1 << 20,), dtype=torch.uint8).repeat(REGION_BYTES >> 20)
    return source, torch.zeros(REGION_BYTES, dtype=torch.uint8)


def by_torch(to, source):
    to.copy_(source)


@pytest.mark.benchmark(group="pin")
@pytest.mark.parametrize("size_bytes", SIZES, ids=lambda size: f"{size >> 10}KiB")
@pytest.mark.parametrize("way", [by_torch, copy_tensor], ids=["torch", "ours"])
def test_pin(benchmark, regions, way, size_bytes):
    """All bytes arrive, by either way, on one core."""
    source, target = regions
    target.zero_()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as torch's pin thread does
    starts = iter(range(0, REGION_BYTES - size_bytes, size_bytes))

    def next_parts():
        start = next(starts)
        part = slice(start, start + size_bytes)
        return (target[part], source[part]), {}

    rounds = min(REGION_BYTES // size_bytes - 1, 64)
    try:
        benchmark.pedantic(way, setup=next_parts, rounds=rounds)
    finally:
        torch.set_num_threads(threads)

    copied = rounds * size_bytes if benchmark.stats is not None else size_bytes
    assert torch.equal(source[:copied], target[:copied])
