"""Datasets, collate functions, samplers and steps of known cost."""

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info


def burn(seconds: float) -> None:
    """Use a core for so long: processor time, not the clock's."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


class Cost:
    """
    What a sample costs.

    Args:
        sleep_s: Seconds to wait, as for a disk or a network.
        burn_s: Seconds of processor time.
        slow_s: Seconds more for a slow sample.
        every: One sample in so many is slow; 0: none.
        scattered: Slow samples come at no regular distance.
        worker: Samples of this worker are slow; None: of all.
        spread: Each wait is drawn from 1 - spread to 1 + spread times sleep_s.
    """

    def __init__(
        self,
        sleep_s: float = 0.0,
        burn_s: float = 0.0,
        slow_s: float = 0.0,
        every: int = 0,
        worker: int | None = None,
        spread: float = 0.0,
        scattered: bool = False,
    ) -> None:
        self._sleep_s, self._burn_s, self._slow_s = sleep_s, burn_s, slow_s
        self._every, self._worker, self._spread = every, worker, spread
        self._scattered = scattered

    def pay(self, index: int) -> None:
        waits_s = self._sleep_s
        if self._spread:
            waits_s *= 1 + self._spread * random.uniform(-1, 1)
        if self._is_slow(index):
            waits_s += self._slow_s
        if waits_s:
            time.sleep(waits_s)
        if self._burn_s:
            burn(self._burn_s)

    def _is_slow(self, index: int) -> bool:
        info = get_worker_info()
        if self._worker is not None:
            return info is not None and info.id == self._worker
        if self._scattered:
            return random.Random(index).random() * self._every < 1
        return self._every > 0 and index % self._every == self._every // 2


class Samples(Dataset):
    """Rows of a known cost."""

    def __init__(self, cost: Cost, count: int, width: int = 16) -> None:
        self._cost, self._count, self._width = cost, count, width

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        self._cost.pay(index)
        return torch.full((self._width,), float(index))


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
            self._cost.pay(index)
            yield torch.full((16,), float(index))


class Collate:
    """default_collate at a known cost."""

    def __init__(self, sleep_s: float = 0.0, burn_s: float = 0.0) -> None:
        self._sleep_s, self._burn_s = sleep_s, burn_s

    def __call__(self, samples: list[Any]) -> Any:
        if self._sleep_s:
            time.sleep(self._sleep_s)
        if self._burn_s:
            burn(self._burn_s)
        return default_collate(samples)


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
