"""Datasets of which some samples raise, and loaders of what is left of them."""

import random

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

import shmloader


class Unreadable(Exception):
    """Raised by a sample."""


class Faulty(Dataset):
    """
    Samples that draw from all generators and say what they drew; those in `bad` raise after it.

    Attributes:
        bad: Their indices.
        marks: True: they are None instead, so that any loader can leave them out when it collates.
    """

    classes = ("cat", "dog")

    def __init__(self, count, bad, marks=False, rng=None):
        self.count = count
        self.bad = frozenset(bad)
        self.marks = marks
        self.rng = rng

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        own = self.rng().random() if self.rng else 0.0
        drawn = [random.random(), numpy.random.rand(), torch.rand(()).item(), own]
        if index not in self.bad:
            return torch.tensor([index, *drawn], dtype=torch.float64)
        if self.marks:
            return None
        raise Unreadable(f"no sample {index}")


class FaultyAtOnce(Faulty):
    """The same, several at a time: a whole request raises."""

    kind = list

    def __getitems__(self, indices):
        return self.kind([self[index] for index in indices])


class FaultyStream(IterableDataset):
    """Each worker's share of the same samples, by an iterator that goes on after an error."""

    def __init__(self, count, bad):
        self.samples = Faulty(count, bad)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return Share(self.samples, first, step)


class Share:
    """An iterator with a state."""

    def __init__(self, samples, first, step):
        self.samples, self.at, self.step = samples, first, step

    def __iter__(self):
        return self

    def __next__(self):
        at, self.at = self.at, self.at + self.step
        if at >= len(self.samples):
            raise StopIteration
        return self.samples[at]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def without_marks(samples):
    """Collate what is left; None if nothing is."""
    kept = [sample for sample in samples if sample is not None]
    return default_collate(kept) if kept else None


def numbers(batches):
    """List the indices of each batch."""
    return [batch[:, 0].int().tolist() for batch in batches]


def expected(dataset, make=shmloader.DataLoader, **options):
    """List the batches of what is left, by a loader that knows of no errors."""
    torch.manual_seed(11)
    marked = Faulty(dataset.count, dataset.bad, marks=True, rng=dataset.rng)
    loader = make(marked, collate_fn=without_marks, **options)
    return [batch for batch in loader if batch is not None]
