"""Loaders over a stand-in, and what their batches must be."""

from collections import namedtuple
from dataclasses import dataclass

import numpy
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader

Pair = namedtuple("Pair", "x y")


@dataclass
class Record:
    """A user's batch class."""

    x: torch.Tensor
    name: str


class Images(Dataset):
    """Large images with small labels; each value says which sample it is."""

    def __init__(self, count=24, side=512):
        self.count = count
        self.side = side

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((self.side, self.side), index, dtype=torch.int32), index


def loader_of(dataset=None, **options):
    """Make a loader whose batches go to a device."""
    options = {"batch_size": 2, "num_workers": 2, "device": "cuda", **options}
    return DataLoader(Images() if dataset is None else dataset, **options)


PAIRS = [[number, number + 1] for number in range(0, 24, 2)]  # the labels of batches of `Images`


def labels_of(batches):
    """The labels, of which each image must be full."""
    for images, labels in batches:
        assert bool((images == labels[:, None, None]).all())
    return [labels.tolist() for _, labels in batches]


def delivered(gpu, dataset=None, **options):
    """An epoch's batches when all copies are done, and how many were copied in which way."""
    with loader_of(dataset, **options) as loader:
        batches = list(loader)
        gpu.driver.finish()
        return batches, loader.stats().copied


def all_kinds(samples):
    """A batch with leaves of every kind, some of them large."""
    number = float(samples[0])
    large = torch.full((700, 512), number)
    return {
        "large": large,
        "strided": torch.arange(600_000.0).reshape(1000, 600).t() + number,
        "slices": [large[1], large[2:4]],
        "small": torch.tensor([number, 2.0]),
        "scalar": torch.tensor(number, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "bytes": torch.full((3, 5), 7, dtype=torch.uint8).t(),
        "pair": Pair(torch.ones(3), (torch.zeros(2, dtype=torch.bfloat16),)),
        "record": Record(torch.full((2,), number), "one"),
        "array": numpy.full(400_000, number),
        "sparse": torch.eye(3).to_sparse(),
        "text": "words",
        "raw": b"bytes",
        "number": 3,
        "none": None,
    }
