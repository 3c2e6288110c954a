"""
Pinned copies, which torch's `pin_memory=True` asks for, made without the interpreter's lock.

Only the bytes of plain tensors are copied here. What a batch's structure becomes, which methods of
users' classes are called, and what goes wrong, is torch's own function, which finds those tensors
pinned already.
"""

from collections.abc import Callable
from typing import Any

import torch

from shmloader.core import copy_tensor
from shmloader.way_out import ordinary_tensors


def _empty(like: torch.Tensor) -> torch.Tensor:
    shape, strides = like.shape, like.stride()
    # The device is said, because the default one may be another.
    return torch.empty_strided(shape, strides, dtype=like.dtype, device="cpu", pin_memory=True)


def pin(leaf: torch.Tensor, empty: Callable[[torch.Tensor], torch.Tensor] = _empty) -> Any:
    """
    Copy a tensor into pinned memory.

    Args:
        empty: Makes the memory.

    Returns:
        The copy; or the leaf itself if torch must make it, or say why it cannot be made.
    """
    try:
        with ordinary_tensors():
            pinned = empty(leaf)
    except Exception:
        return leaf
    return pinned if copy_tensor(pinned, leaf) else leaf
