"""What must work in a package that lacks a room; runs in a program of its own, by test_rooms.py."""

import os
import signal
import warnings

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, get_worker_info

import shmloader
from tests.torch.golden.cases import Case
from tests.torch.golden.contenders import LOADERS
from tests.torch.golden.describe import first_difference
from tests.torch.golden.recorder import record

# Each option of torch's, at least once.
GOLDEN = (
    Case("map", "shuffle"),
    Case("map", "eager", persistent=True),
    Case("map", "batch_sampler"),
    Case("iterable", "sequential"),
)


class Drawn(Dataset):
    """Samples that are draws of the worker."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, torch.rand(3)


class DiesOnce(Drawn):
    """The same, without draws; one worker dies at one sample, if it is no replacement."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        if index == 5 and get_worker_info() is not None and not os.path.exists(self.path):
            open(self.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def golden():
    """Returns the first difference of a run from torch's; None: there is none."""
    for case in GOLDEN:
        runs = (record(case, LOADERS[name]) for name in ("torch", "ours"))
        if difference := first_difference(*runs):
            return case, difference
    return None


def pinned():
    """pin_memory=True without an accelerator warns as torch does, and the batches come."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(shmloader.DataLoader(range(6), 2, num_workers=1, pin_memory=True))
    has_device = torch.accelerator.is_available()
    assert has_device or any("pin_memory" in str(each.message) for each in caught)
    assert [[0, 1], [2, 3], [4, 5]] == [batch.tolist() for batch in batches]
    assert all(batch.is_pinned() == has_device for batch in batches)


def restarted():
    """A worker that dies is replaced."""
    dataset = DiesOnce(os.path.abspath("died"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = list(shmloader.DataLoader(dataset, 2, num_workers=2, restarts=1))
    assert os.path.exists(dataset.path)
    assert [shmloader.RestartWarning] == [each.category for each in caught]
    assert [list(range(i, i + 2)) for i in range(0, 12, 2)] == [batch.tolist() for batch in found]


def seeded_by_batch():
    """Draws are those of the batch with any number of workers."""
    runs = [draws(num_workers=workers, seed_by="batch") for workers in (0, 1, 3)]
    assert all(torch.equal(runs[0], each) for each in runs[1:])


def draws(**options):
    torch.manual_seed(20)
    return torch.cat([drawn.clone() for _, drawn in shmloader.DataLoader(Drawn(), 2, **options)])


def dynamic():
    """The worker that has least to do is asked, and the batches are torch's."""
    options = {"batch_size": 2, "num_workers": 2, "shuffle": True}
    runs = []
    for kind, ours in ((TorchLoader, {}), (shmloader.DataLoader, {"assignment": "dynamic"})):
        torch.manual_seed(20)
        runs.append([batch.tolist() for batch in kind(range(12), **options, **ours)])
    assert runs[0] == runs[1]


CHECKS = {each.__name__: each for each in (golden, pinned, restarted, seeded_by_batch, dynamic)}
