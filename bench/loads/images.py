"""Images made when they are asked for, each of which tells its index."""

import time

import torch

from bench.loads import Made

SIDE = 224
_MARGIN = 32
_DISTINCT = 64


def numbered(count: int, dtype: torch.dtype = torch.uint8, has_tail: bool = False) -> Made:
    """Samples ((3, 224, 224), index), full of their index modulo 251; a tail: 1 in 100 is slow."""

    def make(index: int) -> tuple[torch.Tensor, int]:
        if has_tail:
            time.sleep(0.05 if index % 100 == 99 else 0.001)
        return torch.full((3, SIDE, SIDE), index % 251, dtype=dtype), index

    return Made(count, make)


def crops(count: int) -> Made:
    """Samples ((3, 224, 224) uint8, index): a crop of a picture that depends on the index alone."""
    size = (_DISTINCT, 3, SIDE + _MARGIN, SIDE + _MARGIN)
    generator = torch.Generator().manual_seed(5)
    pictures = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)

    def crop(index: int) -> tuple[torch.Tensor, int]:
        top, left = index % _MARGIN, index * 7 % _MARGIN
        return pictures[index % _DISTINCT, :, top : top + SIDE, left : left + SIDE], index

    return Made(count, crop)
