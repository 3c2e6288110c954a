"""What must work in a package that lacks a room; runs in a program of its own, by test_rooms.py."""

import os
import signal
import warnings

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, get_worker_info

import shmloader


class DiesOnce(Dataset):
    """Numbers; one worker dies at one of them, if it is no replacement."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5 and get_worker_info() is not None and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def restarted():
    """A worker that dies is replaced."""
    found = batches_of(shmloader.DataLoader, DiesOnce(), restarts=1)
    assert os.path.exists("died")
    assert [list(range(i, i + 2)) for i in range(0, 12, 2)] == found


def like_torch():
    """Batches are torch's, whatever options there are."""
    for options in ({}, {"persistent_workers": True}, {"pin_memory": True}):
        expected = batches_of(TorchLoader, range(12), shuffle=True, **options)
        for ours in ({}, {"assignment": "dynamic", "seed_by": "batch"}):
            found = batches_of(shmloader.DataLoader, range(12), shuffle=True, **options, **ours)
            assert expected == found, (options, ours)


def batches_of(kind, dataset, **options):
    torch.manual_seed(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [batch.tolist() for batch in kind(dataset, 2, num_workers=2, **options)]


CHECKS = {each.__name__: each for each in (like_torch, restarted)}
