"""
The datasets of the soak: photographs, augmented with draws from all three random generators.

A batch has leaves of every kind that travels natively: tensors, an array, strings, floats and ints.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from examples.demo.photographs import PHOTOGRAPHS, PhotographTiles

BATCH_SIZE = 6
TILES_PER_PHOTOGRAPH = 16  # an epoch of 22 batches; three workers' shares end unevenly

_NOISE = 0.05


class Pictures(Dataset):
    """
    Tiles of photographs, cropped, mirrored, recoloured and made noisy at random.

    A sample is a dict of picture (3, H, W) float32, label, name, weight and colour (3,) float32.
    """

    def __init__(self) -> None:
        self._tiles = PhotographTiles(TILES_PER_PHOTOGRAPH)
        self._tint = 0.0
        self._owner = "nobody"

    def __len__(self) -> int:
        return len(self._tiles)

    def __getitem__(self, index: int) -> dict:
        picture, label = self._tiles[index]
        picture += self._tint + _NOISE * torch.randn(picture.shape)
        return {
            "picture": picture,
            "label": label,
            "name": f"{PHOTOGRAPHS[label][1]} for {self._owner}",
            "weight": random.random(),
            "colour": picture.mean((1, 2)).numpy(),
        }

    def prepare(self, worker_id: int) -> None:
        """Change this worker's copy of the dataset, as its init function asks."""
        self._tint = numpy.random.uniform(-_NOISE, _NOISE)
        self._owner = f"worker {worker_id}"


class Replayed(IterableDataset):
    """Every worker's share of the pictures, in an order of its own; its position is not saved."""

    def __init__(self) -> None:
        self._pictures = Pictures()

    def __iter__(self) -> Iterator[dict]:
        for index in self._draw_order():
            yield self._pictures[index]

    def prepare(self, worker_id: int) -> None:
        """Prepare the pictures."""
        self._pictures.prepare(worker_id)

    def _draw_order(self) -> list[int]:
        worker = get_worker_info()
        order = list(range(worker.id, len(self._pictures), worker.num_workers))
        random.shuffle(order)
        return order


class Restored(Replayed):
    """The same pictures from a dataset that saves and restores its position."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[int] | None = None
        self._given: list[int] | None = None

    def __iter__(self) -> Iterator[dict]:
        # Drawn now, so that what was given is for this epoch alone; the class above draws its order
        # with the first sample, and both habits have to be healed.
        self._left = self._draw_order() if self._given is None else self._given
        self._given = None
        return self._rest()

    def _rest(self) -> Iterator[dict]:
        while self._left:
            yield self._pictures[self._left.pop()]

    def state_dict(self) -> dict:
        """List the samples that are still to come in this epoch."""
        return {"left": self._left and list(self._left)}

    def load_state_dict(self, state: dict) -> None:
        """Let the next epoch be the rest of another."""
        self._given = state["left"]


def prepare(worker_id: int) -> None:
    """Be the init function of a worker: change its dataset by draws of its own."""
    get_worker_info().dataset.prepare(worker_id)


def collate(samples: list[dict]) -> dict:
    """Collate as torch does, but keep the colours an array."""
    colours = numpy.stack([sample.pop("colour") for sample in samples])
    return {**default_collate(samples), "colour": colours}
