"""
default_collate whose outputs are allocated in the slot that this worker is writing.

torch keeps its collate functions in a map that users may change. Here the stock entries of that map
are replaced, in the worker alone, by functions that write into the slot; an entry that a user put
there stays. What these functions do not cover, and every error, is the stock function's.
"""

import os

import torch
from torch.utils.data._utils import collate as stock

_desk = None  # the worker's end of its segment, in a worker process


def install(desk):
    """Collate into the slots of a desk from now on, in this process."""
    global _desk
    _desk = desk
    os.register_at_fork(after_in_child=_leave_slot)
    replacements = {
        stock.collate_tensor_fn: _collate_tensors,
        stock.collate_numpy_array_fn: _collate_arrays,
        stock.collate_int_fn: _collate_ints,
        stock.collate_float_fn: _collate_floats,
    }
    for kind, function in stock.default_collate_fn_map.items():
        stock.default_collate_fn_map[kind] = replacements.get(function, function)


def _leave_slot():
    # A child that user code forks must not write into its parent's slot.
    global _desk
    if _desk is not None:
        _desk.leave_slot()
        _desk = None


def _slot_is_open():
    return _desk is not None and _desk.hands_out


def empty(shape, dtype=None):
    """
    Make an uninitialised tensor in the slot being written: what is filled here is never copied.

    For collate functions and datasets in a worker. Elsewhere, on another thread than the worker's
    own, and for dtypes that DLPack lacks, it is an ordinary tensor. A tensor that the worker keeps
    after its batch is sent stays what it was; its slot is then not used again.

    Args:
        shape: Sizes, as for `torch.empty`: an int or a sequence of ints.
        dtype: A torch dtype; default: torch's default dtype.

    Returns:
        A contiguous CPU tensor (*shape), aligned to 64 bytes.

    Raises:
        BatchTooLarge: The batch would exceed `ring_bytes` or the slot's range.
        OutOfSharedMemory: The machine has no room for the pages.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = dtype or torch.get_default_dtype()
    tensor = _desk.empty(sizes, dtype) if _slot_is_open() else None
    return torch.empty(sizes, dtype=dtype) if tensor is None else tensor


def _collate_tensors(batch, *, collate_fn_map=None):
    if not _slot_is_open():
        return stock.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    stacked = _desk.gather("tensors", batch)
    if stacked is None:
        stacked = _stack_into_slot(batch)
    if stacked is None:
        stacked = stock.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return stacked


def _stack_into_slot(batch):
    """Stack alike tensors of any strides into the slot; None where torch may promote or refuse."""
    first = batch[0]
    for sample in batch:
        if (
            type(sample) is not torch.Tensor
            or sample.dtype != first.dtype
            or sample.shape != first.shape
            or sample.layout != torch.strided
            or sample.device.type != "cpu"
            or sample.requires_grad
        ):
            return None
    out = _desk.empty((len(batch), *first.shape), first.dtype)
    return None if out is None else torch.stack(batch, 0, out=out)


def _collate_arrays(batch, *, collate_fn_map=None):
    # A changed tensor entry shall see the samples, as torch's own array function shows them to it.
    if _slot_is_open() and collate_fn_map.get(torch.Tensor) is _collate_tensors:
        stacked = _desk.gather("arrays", batch)
        if stacked is not None:
            return stacked
    return stock.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)


def _collate_ints(batch, *, collate_fn_map=None):
    stacked = _desk.gather("ints", batch) if _slot_is_open() else None
    if stacked is None:
        return stock.collate_int_fn(batch, collate_fn_map=collate_fn_map)
    return stacked


def _collate_floats(batch, *, collate_fn_map=None):
    stacked = _desk.gather("floats", batch) if _slot_is_open() else None
    if stacked is None:
        return stock.collate_float_fn(batch, collate_fn_map=collate_fn_map)
    return stacked
