"""
Datasets whose every element says which sample it belongs to, and the batches that they should give.

A batch that was overwritten, torn or delivered instead of another differs from the expected one.
"""

import os
import signal
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset

WIDTH = 600  # a batch of two is more than what is copied out of its slot unsaid


def sample(index: int, width: int = WIDTH) -> torch.Tensor:
    """Make sample number `index`: (width,) float64, no two elements of any two samples equal."""
    return torch.arange(width, dtype=torch.float64) + 1000 * index


def batch(number: int, size: int, width: int = WIDTH) -> torch.Tensor:
    """Make batch `number` of `size` samples, drawn in order: (size, width) float64."""
    return torch.stack([sample(number * size + row, width) for row in range(size)])


class Numbered(Dataset):
    """A map-style dataset of numbered samples."""

    def __init__(self, count: int, width: int = WIDTH):
        self.count = count
        self.width = width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return sample(index, self.width)


class Computed(Dataset):
    """A map-style dataset whose sample `i` is `make(i)`."""

    def __init__(self, count: int, make):
        self.count = count
        self.make = make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return self.make(index)


class Iterated(IterableDataset):
    """An iterable dataset of what `make()` iterates, in each worker."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())


class DiesOnce(Dataset):
    """A dataset around another: the first process that asks for one sample is killed there."""

    def __init__(self, inner: Dataset, flag: Path, index: int = 13):
        self.inner = inner
        self.flag = flag
        self.index = index

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int):
        if index == self.index and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner[index]


class Stream(IterableDataset):
    """An iterable dataset; each worker yields its share of the numbered samples."""

    def __init__(self, count: int):
        self.count = count

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from (sample(index) for index in range(info.id, self.count, info.num_workers))


def identity(batch):
    """Collate nothing."""
    return batch


def deliver(loader_class, make):
    """Have a loader of this class deliver what a function returns, as it is."""
    dataset = Computed(1, lambda index: make())
    loader = loader_class(dataset, batch_size=None, num_workers=1, collate_fn=identity, timeout=30)
    (batch,) = loader
    return batch


def state(loader, name: str) -> int:
    """Count the slots of a loader that are in this state now."""
    return loader.stats().slots.get(name, 0)
