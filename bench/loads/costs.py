"""Programs, datasets and waits of known cost."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy
import torch
from torch.utils.data import IterableDataset, get_worker_info

from bench.loads import Made

# Uses a core until its parent ends, or some seconds are over.
_OTHER = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while os.getppid() == parent and time.monotonic() < end: sum(range(10000))
"""


@contextlib.contextmanager
def other_programs(count: int, for_s: float = 1e9) -> Iterator[None]:
    """Run so many other programs, each of which uses a core, for so long at most."""
    command = [sys.executable, "-c", _OTHER, str(for_s)]
    running = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def burn(seconds: float) -> None:
    """Use a core for so long: processor time, not the clock's."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


class Cost(NamedTuple):
    """
    What a sample costs.

    Attributes:
        sleep_s: Seconds to wait, as for a disk or a network.
        slow_s: Seconds more for a slow sample.
        every: One sample in so many is slow.
    """

    sleep_s: float
    slow_s: float
    every: int

    def row(self, index: int, width: int) -> torch.Tensor:
        """Pay, and make a sample: (width,) float32, full of its index."""
        is_slow = index % self.every == self.every // 2
        time.sleep(self.sleep_s + self.slow_s * is_slow)
        return torch.full((width,), float(index))


class Samples(Made):
    """Rows of a known cost."""

    def __init__(self, cost: Cost, count: int, width: int) -> None:
        super().__init__(count, lambda index: cost.row(index, width))


class Arrays(IterableDataset):
    """Random arrays without end, each after 3 ms; each worker has a stream of its own."""

    def __init__(self, *shape: int) -> None:
        self._shape = shape

    def __iter__(self) -> Iterator[numpy.ndarray]:
        for array in arrays_of(get_worker_info().id, *self._shape):
            time.sleep(0.003125)
            yield array


def arrays_of(worker: int, *shape: int) -> Iterator[numpy.ndarray]:
    """Make a worker's arrays, always the same."""
    generator = numpy.random.default_rng(worker)
    while True:
        yield generator.random(shape)
