"""
default_collate whose outputs are allocated in the slot that this worker is writing.

torch keeps its collate functions in a map that users may change. In the worker alone collate(),
which default_collate calls, walks the samples natively, unless an entry of the user's has a say in
what is covered. What is not covered, and every error, is left to torch's function.

That, and every function that was copied from it, stacks samples into a storage in shared memory.
While a collate function runs on the worker's main thread, such a storage is memory of the slot; on
another thread, where no slot is open, it is private memory, and no file is made for it either. At
all other times it is torch's own: a dataset that asks for it may share it for longer than a batch
lives, or want more of it than a batch may have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils import collate as torch_collate

if TYPE_CHECKING:
    from shmloader.core import Desk

_desk: Any = None  # the worker's end of its segment, in a worker process
_torchs_collate = torch_collate.collate
_Storage: Any = torch.UntypedStorage
_torchs_new_shared: Any = torch.UntypedStorage._new_shared
_PLAIN = {int}  # the type of sizes that need no look by torch

_Functions = dict[Any, Callable[..., Any]] | None


class _Here(threading.local):
    collates = False  # this thread is inside of a collate function


_here = _Here()


def install(desk: Desk) -> None:
    """Collate into the slots of a desk from now on, in this process."""
    os.register_at_fork(after_in_child=leave, after_in_parent=_keep_slot)
    torch_collate.collate = _collate
    use(desk)


def use(desk: Desk) -> None:
    """Make storages of a desk's slots from now on, in this process."""
    global _desk
    _desk = desk
    _Storage._new_shared = classmethod(_new_shared)


def leave() -> None:
    """Give torch its own storages back: in a forked child, for the slot is its parent's."""
    global _desk
    if _desk is not None:
        _desk.leave_slot()
        _desk = None
        del _Storage._new_shared


def _keep_slot() -> None:
    if _desk is not None:
        _desk.keep_slot()


def _slot_is_open() -> bool:
    return _desk is not None and bool(_desk.hands_out)


def empty(shape: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """
    Make an uninitialised tensor in the slot being written: what you fill in is not copied again.

    For collate functions and datasets in a worker. Outside a worker, on another thread than the
    worker's main thread, and for dtypes that DLPack lacks, it is an ordinary tensor. A tensor that
    the worker retains after its batch is sent does not change; its slot is then not reused.

    Args:
        shape: Sizes, as for `torch.empty`: an int or a sequence of ints, also numpy's.
        dtype: A torch dtype; default: torch's default dtype.

    Returns:
        A contiguous CPU tensor `(*shape)`, aligned to 64 bytes.

    Raises:
        BatchTooLarge: The batch would exceed `ring_bytes` or the slot's range.
        OutOfSharedMemory: The machine has no memory for the pages.
    """
    sizes = _sizes_of(shape)
    tensor = _desk.empty(sizes, dtype or torch.get_default_dtype()) if _slot_is_open() else None
    return torch.empty(sizes, dtype=dtype) if tensor is None else tensor


def _sizes_of(shape: Any) -> Sequence[int]:
    """Read sizes as torch does: also integers that are not Python's, and with torch's errors."""
    if type(shape) is int:
        return (shape,)
    sizes = tuple(shape) if _has_items(shape) else shape
    if type(sizes) is tuple and _PLAIN.issuperset(map(type, sizes)):
        return sizes
    return torch.empty(sizes, device="meta").shape


def _has_items(shape: Any) -> bool:
    # Arrays and tensors of no dimension look like containers, and are integers to torch.
    return isinstance(shape, Iterable) and getattr(shape, "ndim", 1) > 0


def _collate(batch: Any, *, collate_fn_map: _Functions = None) -> Any:
    if _desk is not None and _desk.walks and _is_walked(collate_fn_map):
        return _desk.collate(batch, collate_fn_map, _ask_torch)
    return _ask_torch(batch, collate_fn_map=collate_fn_map)


def _ask_torch(batch: Any, *, collate_fn_map: _Functions = None) -> Any:
    before, _here.collates = _here.collates, True
    try:
        return _torchs_collate(_resolved(batch, collate_fn_map), collate_fn_map=collate_fn_map)
    finally:
        _here.collates = before


def _resolved(batch: Any, functions: _Functions) -> Any:
    """Conjugate or negate tensors that are to be: torch's function cannot stack such in memory."""
    if functions is None or functions.get(torch.Tensor) is not torch_collate.collate_tensor_fn:
        return batch
    if type(batch) not in (list, tuple) or {*map(type, batch)} != {torch.Tensor}:
        return batch
    if not any(sample.is_neg() or sample.is_conj() for sample in batch):
        return batch
    return [sample.resolve_conj().resolve_neg() for sample in batch]


def with_slot(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a collate function that finds storages of the slot, from the user's."""
    if function is default_collate or function is default_convert:
        # The one says itself when it calls torch's functions, the other makes no storage.
        return function

    # No context manager: it would take three times as long, for each batch.
    def collate(samples: Any) -> Any:
        before, _here.collates = _here.collates, True
        if _desk is not None:
            _desk.begin_collating()
        try:
            return function(samples)
        finally:
            _here.collates = before

    return collate


def _new_shared(cls: Any, size: Any, *, device: Any = "cpu") -> Any:
    made = None
    if _here.collates and torch.device(device).type == "cpu":
        made = _make(index(size))
    return _torchs_new_shared.__func__(cls, size, device=device) if made is None else made


def _make(size: int) -> Any:
    """Make a storage of the slot or of private memory; None for a size that torch refuses."""
    if _desk.hands_out:
        tensor = _desk.empty((size,), torch.uint8)
    else:
        # By numpy, so that it cannot be resized: torch's errors for samples of several sizes.
        tensor = None if size < 0 else torch.from_numpy(numpy.empty(size, numpy.uint8))
    return None if tensor is None else tensor.untyped_storage()


# torch's functions for what is walked natively, and the containers.
_LEAVES = {
    torch.Tensor: torch_collate.collate_tensor_fn,
    numpy.ndarray: torch_collate.collate_numpy_array_fn,
    float: torch_collate.collate_float_fn,
    int: torch_collate.collate_int_fn,
}
_CONTAINERS: tuple[Any, ...] = ([], (), {})
_judged: tuple[Any, bool] = None, False  # the entries of the last map, and if it is walked


def _is_walked(functions: _Functions) -> bool:
    """Returns True if a map of collate functions has torch's own for all that is walked."""
    global _judged
    if type(functions) is not dict:
        return False
    entries = tuple(functions.items())
    if entries != _judged[0]:
        _judged = entries, _has_torchs(functions)
    return _judged[1]


def _has_torchs(functions: dict[Any, Any]) -> bool:
    if any(functions.get(kind) is not function for kind, function in _LEAVES.items()):
        return False
    return not any(isinstance(each, kind) for kind in functions for each in _CONTAINERS)
