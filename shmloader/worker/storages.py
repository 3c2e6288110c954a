"""
Storages of slot memory, where a collate function asks torch for a storage in shared memory.

torch's collate function for tensors, and every function that was copied from it, stacks samples
into such a storage. While a collate function runs on the worker's main thread, it is memory of the
slot; on another thread, where no slot is open, it is private memory, and no file is made for it
either. At all other times it is torch's own: a dataset that asks for it may share it for longer
than a batch lives, or want more of it than a batch may have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch.utils.data import default_collate, default_convert

if TYPE_CHECKING:
    from shmloader.core import Desk


_desk: Any = None  # the worker's end of its segment, in a worker process
_Storage: Any = torch.UntypedStorage
_torchs: Any = torch.UntypedStorage._new_shared


class _Here(threading.local):
    collates = False  # this thread is inside of a collate function


here = _Here()


def install(desk: Desk) -> None:
    """Make storages of a desk's slots from now on, in this process."""
    global _desk
    _desk = desk
    _Storage._new_shared = classmethod(_new_shared)


def leave() -> None:
    """Give torch its own function back: this is a forked child, the slot is its parent's."""
    global _desk
    if _desk is not None:
        _desk = None
        del _Storage._new_shared


def with_slot(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a collate function that finds storages of the slot, from the user's."""
    if function is default_collate or function is default_convert:
        # The one says itself when it calls torch's functions, the other makes no storage.
        return function

    # No context manager: it would take three times as long, for each batch.
    def collate(samples: Any) -> Any:
        before, here.collates = here.collates, True
        if _desk is not None:
            _desk.begin_collating()
        try:
            return function(samples)
        finally:
            here.collates = before

    return collate


def _new_shared(cls: Any, size: Any, *, device: Any = "cpu") -> Any:
    made = None
    if here.collates and torch.device(device).type == "cpu":
        made = _make(index(size))
    return _torchs.__func__(cls, size, device=device) if made is None else made


def _make(size: int) -> Any:
    """Make a storage of the slot or of private memory; None for a size that torch refuses."""
    if _desk.hands_out:
        tensor = _desk.empty((size,), torch.uint8)
    else:
        # By numpy, so that it cannot be resized: torch's errors for samples of several sizes.
        tensor = None if size < 0 else torch.from_numpy(numpy.empty(size, numpy.uint8))
    return None if tensor is None else tensor.untyped_storage()
