"""Datasets, collate functions, samplers and steps of known cost."""

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import IterableDataset, Sampler, default_collate, get_worker_info

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


def pause(sleep_s: float, burn_s: float) -> None:
    """Sleep and use a core, for so long each."""
    if sleep_s:
        time.sleep(sleep_s)
    if burn_s:
        burn(burn_s)


@dataclass(frozen=True)
class Cost:
    """
    What a sample costs.

    Attributes:
        sleep_s, burn_s: Seconds to wait, as for a disk or a network, and of processor time.
        slow_s: Seconds more for a slow sample.
        every: One sample in so many is slow; 0: none.
        scattered: Slow samples come at no regular distance.
        worker: Samples of this worker are slow; None: of all.
        spread: Each wait is drawn from 1 - spread to 1 + spread times sleep_s.
    """

    sleep_s: float = 0.0
    burn_s: float = 0.0
    slow_s: float = 0.0
    every: int = 0
    worker: int | None = None
    spread: float = 0.0
    scattered: bool = False

    def row(self, index: int, width: int = 16) -> torch.Tensor:
        """Pay, and make a sample: (width,) float32, full of its index."""
        waits_s = self.sleep_s
        if self.spread:
            waits_s *= 1 + self.spread * random.uniform(-1, 1)
        if self._is_slow(index):
            waits_s += self.slow_s
        pause(waits_s, self.burn_s)
        return torch.full((width,), float(index))

    def _is_slow(self, index: int) -> bool:
        info = get_worker_info()
        if self.worker is not None:
            return info is not None and info.id == self.worker
        if self.scattered:
            return random.Random(index).random() * self.every < 1
        return self.every > 0 and index % self.every == self.every // 2


class Samples(Made):
    """Rows of a known cost."""

    def __init__(self, cost: Cost, count: int, width: int = 16) -> None:
        super().__init__(count, lambda index: cost.row(index, width))


class Batched(Samples):
    """The same, asked for a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """The same as a stream; each worker yields its share."""

    def __init__(self, cost: Cost, count: int) -> None:
        self._cost, self._count = cost, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, of = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self._count, of):
            yield self._cost.row(index)


def collate_at(sleep_s: float = 0.0, burn_s: float = 0.0) -> Callable[[list[Any]], Any]:
    """Make a default_collate of a known cost."""

    def collate(samples: list[Any]) -> Any:
        pause(sleep_s, burn_s)
        return default_collate(samples)

    return collate


class Draws(Sampler):
    """Batches of indices in order, each of which takes the trainer a while to draw."""

    def __init__(self, count: int, size: int, draw_s: float) -> None:
        self._count, self._size, self._draw_s = count, size, draw_s

    def __len__(self) -> int:
        return self._count // self._size

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, self._count - self._size + 1, self._size):
            burn(self._draw_s)
            yield list(range(first, first + self._size))


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
