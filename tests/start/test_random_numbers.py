"""What workers draw, before they are seeded and after, beside torch's spawned ones."""

import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from shmloader import DataLoader

WAYS = [
    {"multiprocessing_context": "forkserver"},
    {"multiprocessing_context": "spawn", "preload": ("json",)},
]
WORKERS, EPOCHS = 2, 2


def drawn():
    """Draw from each generator of the process."""
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


class Drawing(Dataset):
    """Draws when it is unpickled, which is before a worker is seeded, and in its samples."""

    before = None

    def __len__(self):
        return WORKERS

    def __getstate__(self):
        return {"any": "state, without which nothing is called"}

    def __setstate__(self, state):
        self.before = drawn()

    def __getitem__(self, index):
        return self.before, drawn()


def only(samples):
    return samples[0]


def epochs(kind, **options):
    """Return what was drawn before and after seeding, by worker and epoch."""
    torch.manual_seed(4)
    loader = kind(Drawing(), num_workers=WORKERS, collate_fn=only, **options)
    return list(zip(*(pair for _ in range(EPOCHS) for pair in loader), strict=True))


@pytest.fixture(scope="module")
def expected():
    """What torch's spawned workers draw."""
    return epochs(TorchDataLoader, multiprocessing_context="spawn")


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_draws(expected, way):
    """Before, all generators differ by worker, as torch's do; after, all draws are torch's."""
    actual = epochs(DataLoader, **way)

    assert expected[1] == actual[1]
    for before in (expected[0], actual[0]):
        for draws in zip(*before, strict=True):
            assert WORKERS * EPOCHS == len(set(draws))
