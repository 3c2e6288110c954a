"""
default_collate whose outputs are allocated in the slot that this worker is writing.

torch keeps its collate functions in a map that users may change. In the worker alone, torch's own
entries of that map are replaced by functions that write into the slot; an entry of the user stays.
While the map has no entry of the user, collate() itself, which default_collate calls, walks the
samples natively. What is not covered, and every error, is left to torch's function.

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
    for kind, function in torch_collate.default_collate_fn_map.items():
        torch_collate.default_collate_fn_map[kind] = _REPLACEMENTS.get(function, function)
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
    if _desk is not None and _desk.walks and _is_untouched(collate_fn_map):
        return _desk.collate(batch, collate_fn_map, _ask_torch)
    return _ask_torch(batch, collate_fn_map=collate_fn_map)


def _ask_torch(batch: Any, *, collate_fn_map: _Functions = None) -> Any:
    before, _here.collates = _here.collates, True
    try:
        return _torchs_collate(batch, collate_fn_map=collate_fn_map)
    finally:
        _here.collates = before


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


def _is_untouched(functions: _Functions) -> bool:
    """Returns True if a map of collate functions is torch's own and has no entry of the user."""
    return (
        functions is torch_collate.default_collate_fn_map and tuple(functions.items()) == _UNTOUCHED
    )


def _into_slot(
    gather: Callable[[Any, _Functions], Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Make a collate function that gathers into the slot, and leaves to torch what gives None."""

    def collate(batch: Any, *, collate_fn_map: _Functions = None) -> Any:
        collated = gather(batch, collate_fn_map) if _slot_is_open() else None
        return original(batch, collate_fn_map=collate_fn_map) if collated is None else collated

    return collate


def _gather_tensors(batch: Any, _: _Functions) -> Any:
    gathered = _desk.gather(batch)
    if gathered is None and _are_lazy(batch):
        # torch's own function has no way to stack these in shared memory.
        return _desk.gather([sample.resolve_conj().resolve_neg() for sample in batch])
    return gathered


def _are_lazy(batch: Any) -> bool:
    """Returns True for plain tensors of which one at least is to be conjugated or negated."""
    return {*map(type, batch)} == {torch.Tensor} and any(
        sample.is_neg() or sample.is_conj() for sample in batch
    )


def _gather_arrays(batch: Any, functions: _Functions) -> Any:
    # If the user replaced the tensor entry, let it see the samples, as torch's function does.
    if functions is None or functions.get(torch.Tensor) is not _collate_tensors:
        return None
    return _desk.gather(batch)


def _gather_numbers(batch: Any, _: _Functions) -> Any:
    return _desk.gather(batch)


_collate_tensors = _into_slot(_gather_tensors, torch_collate.collate_tensor_fn)
_REPLACEMENTS = {
    torch_collate.collate_tensor_fn: _collate_tensors,
    torch_collate.collate_numpy_array_fn: _into_slot(
        _gather_arrays, torch_collate.collate_numpy_array_fn
    ),
    torch_collate.collate_int_fn: _into_slot(_gather_numbers, torch_collate.collate_int_fn),
    torch_collate.collate_float_fn: _into_slot(_gather_numbers, torch_collate.collate_float_fn),
}
# torch's map. Another version of torch with another map is served by its own collate(), with the
# replacements above.
_TORCHS_MAP = {
    torch.Tensor: torch_collate.collate_tensor_fn,
    numpy.ndarray: torch_collate.collate_numpy_array_fn,
    (numpy.bool_, numpy.number, numpy.object_): torch_collate.collate_numpy_scalar_fn,
    float: torch_collate.collate_float_fn,
    int: torch_collate.collate_int_fn,
    str: torch_collate.collate_str_fn,
    bytes: torch_collate.collate_str_fn,
}
# The same as install() leaves it if the user changed nothing.
_UNTOUCHED = tuple(
    (kind, _REPLACEMENTS.get(function, function)) for kind, function in _TORCHS_MAP.items()
)
