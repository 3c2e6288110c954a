"""Datasets for `cached()`: they count, in memory that all processes share, what is fetched."""

import random

import numpy
import torch
from torch.utils.data import Dataset

WIDTH = 600


def content(index, width=WIDTH):
    """What a sample is made of: (width,) int64, no two elements of any two samples equal."""
    return torch.arange(width, dtype=torch.int64) + 100_000 * index


class Fetched(Dataset):
    """
    Samples of which each fetch is counted.

    Attributes:
        fetches: How often each was fetched, (count,) int64 in shared memory.
    """

    classes = ("cat", "dog")

    def __init__(self, count, width=WIDTH):
        self.width = width
        self.fetches = torch.zeros(count, dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.fetches)

    def __getitem__(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError(f"no sample {index}")
        self.fetches[index] += 1
        index %= len(self)
        return {"data": content(index, self.width), "index": index, "name": f"sample {index}"}


class AtOnce(Fetched):
    """The same, also several at a time."""

    def __init__(self, count, kind=list):
        super().__init__(count)
        self.kind = kind
        self.requests = []

    def __getitems__(self, indices):
        self.requests.append(list(indices))
        return self.kind(self[index] for index in indices)


class Drawing(Dataset):
    """Samples that draw from all three generators, and from another one if there is one."""

    def __init__(self, count, rng=None):
        self.count = count
        self.rng = rng

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        own = self.rng().random() if self.rng else 0.0
        return torch.tensor([index, *drawn(), own], dtype=torch.float64)


def drawn():
    """Draw once from each of the three generators."""
    return random.random(), numpy.random.rand(), torch.rand(1, dtype=torch.float64).item()


class Augment:
    """A transform that draws from all of them, and gives what it drew beside the sample."""

    def __init__(self, rng=None):
        self.rng = rng

    def __call__(self, sample):
        own = self.rng().random() if self.rng else 0.0
        return sample, torch.tensor([*drawn(), own], dtype=torch.float64)
