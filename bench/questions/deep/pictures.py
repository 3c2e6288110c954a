"""Crops of pictures in memory: 64 of (3, 224, 224) uint8 make a batch of 9.6 MB."""

import torch
from torch.utils.data import Dataset, default_collate

BATCH, SIDE, MARGIN = 64, 224, 32
BATCH_BYTES = BATCH * 3 * SIDE * SIDE
_DISTINCT = 64


class Crops(Dataset):
    """Sample i: a crop of one of the pictures, which depends on i alone, and i."""

    def __init__(self, batches: int):
        self._count = batches * BATCH
        made = torch.Generator().manual_seed(5)
        size = (_DISTINCT, 3, SIDE + MARGIN, SIDE + MARGIN)
        self._pictures = torch.randint(0, 256, size, dtype=torch.uint8, generator=made)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        top, left = index % MARGIN, index * 7 % MARGIN
        return self._pictures[index % _DISTINCT, :, top : top + SIDE, left : left + SIDE], index


def batch_of(dataset: Crops, number: int) -> list[torch.Tensor]:
    """Make a batch of the epoch in order."""
    return default_collate(
        [dataset[index] for index in range(number * BATCH, (number + 1) * BATCH)]
    )


def look_at(batch: list[torch.Tensor]) -> tuple[int, int]:
    """What a step reads here: a part of each picture, and all labels. It tells batches apart."""
    pictures, labels = batch
    return int(pictures[:, :, ::56, ::56].sum()), int(labels.sum())
