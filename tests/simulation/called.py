"""What a pool's workers call in a run."""

from __future__ import annotations

import numpy


def squared(start: int, length: int) -> numpy.ndarray:
    """Make an array in the worker."""
    return numpy.arange(start, start + length) ** 2


def doubled(array: numpy.ndarray) -> numpy.ndarray:
    """Make an array of one that came with the call."""
    return array * 2


def returned(array: numpy.ndarray) -> numpy.ndarray:
    """Return what came with the call."""
    return array


def failing(start: int, length: int) -> numpy.ndarray:
    """Fail for every seventh number."""
    if start % 7 == 3:
        raise LookupError(start)
    return squared(start, length)
