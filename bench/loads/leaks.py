"""A dataset that leaks."""

import mmap
import time

import torch

from bench.loads import Made

LEAK_BYTES = 5_000_000

_CONTENT = b"x" * LEAK_BYTES
_kept: list[mmap.mmap] = []


def leaking(count: int, most_kept: int | None, wait_s: float = 0.002) -> Made:
    """
    Samples (1,) float64, each drawn, that leave 5 MB behind.

    Args:
        most_kept: Of how many a worker keeps the memory before it gives all back; None: of all.
        wait_s: What making one waits for besides, so that a worker lives for seconds.
    """

    def make(index: int) -> torch.Tensor:
        # Not of the heap, which would give the next sample the same pages again.
        taken = mmap.mmap(-1, LEAK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        taken.write(_CONTENT)
        _kept.append(taken)
        if most_kept is not None and len(_kept) > most_kept:
            for each in _kept:
                each.close()
            _kept.clear()
        time.sleep(wait_s)
        return index + torch.rand(1, dtype=torch.float64)

    return Made(count, make)
