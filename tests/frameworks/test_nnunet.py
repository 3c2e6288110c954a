"""nnU-Net's augmenter, by the program in examples/, over a loader of batchgenerators'."""

from __future__ import annotations

import importlib

import numpy
import torch

from tests.helpers.segments import in_slots

from .needs import needs
from .shims import example
from .training import plain
from .ways import TorchLoader, Way

needs("batchgenerators", "threadpoolctl")

from batchgenerators.dataloading.data_loader import SlimDataLoaderBase  # noqa: E402
from batchgenerators.dataloading.nondet_multi_threaded_augmenter import (  # noqa: E402
    NonDetMultiThreadedAugmenter,
)

BATCHES = 12
SHAPE = (2, 1, 8, 8, 8)
EXAMPLE = Way("example", TorchLoader)


class Crops(SlimDataLoaderBase):
    """Batches as nnU-Net makes them: crops drawn with numpy, in tensors, without end."""

    def __init__(self):
        super().__init__(numpy.linspace(0, 1, 16**3).reshape(16, 16, 16), SHAPE[0])

    def generate_train_batch(self):
        starts = numpy.random.randint(0, 8, (SHAPE[0], 3))
        crops = [self._data[x : x + 8, y : y + 8, z : z + 8] for x, y, z in starts]
        data = torch.from_numpy(numpy.stack(crops)[:, None]).float()
        return {"data": data, "target": [data > 0.5, data[..., ::2] > 0.5], "keys": ["a", "b"]}


def noisy(data, target, keys):
    """Add noise of torch's generator, as a transform in the worker."""
    return {"data": data + torch.rand_like(data), "target": target, "keys": keys, "seen": True}


def kind_of(way):
    return example("nnunet_augmenter").Augmenter if way == EXAMPLE else NonDetMultiThreadedAugmenter


def train(way):
    """Train for some batches of one worker whose draws are seeded. Returns the losses."""
    augmenter = kind_of(way)(Crops(), noisy, 1, num_cached=4, seeds=[5], wait_time=0.002)
    net = torch.nn.Conv3d(1, 1, 3, padding=1)

    def loss_of(batch):
        assert ["a", "b"] == batch["keys"] and batch["seen"]
        target = batch["target"][0].float()
        return torch.nn.functional.binary_cross_entropy_with_logits(net(batch["data"]), target)

    try:
        return plain((next(augmenter) for _ in range(BATCHES)), 1, net, loss_of)
    finally:
        augmenter._finish()


def test_augmenter(compare):
    """One seeded worker's batches train to the losses that batchgenerators' own processes give."""
    compare(train, EXAMPLE)


def test_batches_lie_in_slots():
    """Tensors of two workers' batches lie in slots, also after a restart as nnU-Net does it."""
    augmenter = kind_of(EXAMPLE)(Crops(), None, 2, num_cached=6)
    for _ in range(2):
        for _ in range(BATCHES):
            batch = next(augmenter)
            assert SHAPE == tuple(batch["data"].shape)
            assert all(in_slots([batch["data"], *batch["target"]]))
        augmenter.restart()
    assert 0 == augmenter.loader.stats().spilled
    augmenter._finish()


def test_nnunet_takes_it(monkeypatch):
    """nnU-Net's trainer finds the class under the name that install() sets, and ends it."""
    needs("nnunetv2")
    trainers = importlib.import_module("nnunetv2.training.nnUNetTrainer.nnUNetTrainer")
    monkeypatch.setattr(
        trainers, "NonDetMultiThreadedAugmenter", trainers.NonDetMultiThreadedAugmenter
    )
    example("nnunet_augmenter").install()

    assert kind_of(EXAMPLE) is trainers.NonDetMultiThreadedAugmenter
    assert issubclass(kind_of(EXAMPLE), NonDetMultiThreadedAugmenter)
