"""MONAI: tensors with an affine and a history, patches by a list collate, caches, threads."""

from __future__ import annotations

import pytest
import torch

from .conftest import tried
from .needs import needs
from .training import plain
from .ways import FREE, IMPORT, INSTALL, WRAP, assert_lie_in_slots, made

needs("monai")

from monai.data import CacheDataset, DataLoader, MetaTensor, ThreadDataLoader  # noqa: E402
from monai.transforms import (  # noqa: E402
    Compose,
    RandFlipd,
    RandGaussianNoised,
    RandSpatialCropSamplesd,
    ScaleIntensityd,
)

SCANS = 18
WORKERS = {"batch_size": 3, "num_workers": 2}
THREADS = {**WORKERS, "use_thread_workers": True}
BATCHES = SCANS // 3


def scan(index):
    """Make a scan of (1, 12, 12, 12) with its affine, and a label."""
    voxels = torch.linspace(0, 1 + index, 12**3).reshape(1, 12, 12, 12)
    return {"image": MetaTensor(voxels, affine=torch.eye(4) * (1 + index)), "label": index % 4}


def patches():
    """Make a cached dataset whose samples are lists of two patches, cropped at random."""
    transforms = Compose(
        [
            ScaleIntensityd("image"),
            RandSpatialCropSamplesd("image", (6, 6, 6), num_samples=2, random_size=False),
            RandFlipd("image", prob=0.5, spatial_axis=0),
            RandGaussianNoised("image", prob=0.5),
        ]
    )
    transforms.set_random_state(seed=7)
    return CacheDataset([scan(index) for index in range(SCANS)], transforms, progress=False)


def train(loader):
    """Train by hand. Returns what each step saw of the scans' affines, and its loss."""
    net, affines = torch.nn.Linear(6**3, 4), []

    def loss_of(batch):
        affines.append(batch["image"].affine.tolist())
        pictures = batch["image"].as_tensor().flatten(1)
        return torch.nn.functional.cross_entropy(net(pictures), batch["label"])

    return list(zip(plain(loader, net=net, loss_of=loss_of), affines, strict=True))


def test_loader(compare, way):
    """Patches of a cached dataset, with MONAI's collate and seeds, train to torch's losses."""
    if way is FREE:
        pytest.skip("each random transform has a generator of its own, so draws are the worker's")
    compare(lambda way: train(made(way, DataLoader, patches(), shuffle=True, **WORKERS)), way)


@pytest.mark.parametrize("way", [WRAP, INSTALL], ids=str)
def test_thread_loader(compare, way):
    """A thread of MONAI's that takes batches ahead gets ours; each is used twice."""
    compare(lambda way: train(made(way, ThreadDataLoader, patches(), repeats=2, **WORKERS)), way)


def test_workers_that_are_threads_stay_torchs():
    """With install() such a loader is iterated as before."""

    def count(_):
        return [len(batch["label"]) for batch in ThreadDataLoader(patches(), **THREADS)]

    ours = tried(INSTALL, count)

    assert [6] * BATCHES == ours.losses
    assert (0, 1) == (ours.made.ours, ours.made.torchs)


def leaves(batch):
    """List the tensors of a batch: the patches, their affine and the labels."""
    return [batch["image"].as_tensor(), batch["image"].affine, batch["label"]]


@pytest.mark.parametrize("way", [IMPORT, WRAP], ids=str)
def test_leaves_lie_in_slots(way):
    """All tensors of a batch lie in its slot."""

    def leaves_of(batch):
        assert isinstance(batch["image"], MetaTensor)
        return leaves(batch)

    assert_lie_in_slots(made(way, DataLoader, patches(), **WORKERS), leaves_of)
