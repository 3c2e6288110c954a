"""What must work in a package that lacks a room; runs in a program of its own, by test_rooms.py."""

import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader as TorchLoader

import shmloader
from tests.helpers.datasets import DiesOnce


def restarted():
    """A worker that dies is replaced."""
    died = Path("died")
    found = batches_of(shmloader.DataLoader, DiesOnce(range(12), died, 5), restarts=1)
    assert died.exists()
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
