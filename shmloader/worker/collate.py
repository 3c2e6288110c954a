"""
default_collate whose outputs are allocated in the slot that this worker is writing.

torch keeps its collate functions in a map that users may change. In the worker alone, the stock
entries of that map are replaced by functions that write into the slot; an entry that a user put
there stays. While the map holds nothing of the user's, collate() itself, which default_collate
calls, walks the samples natively. What is not covered, and every error, is the stock function's.
"""

import os
from typing import Any

import numpy
import torch
from torch.utils.data._utils import collate as stock

_desk: Any = None  # the worker's end of its segment, in a worker process
_stock_collate = stock.collate


def install(desk):
    """Collate into the slots of a desk from now on, in this process."""
    global _desk
    _desk = desk
    os.register_at_fork(after_in_child=_leave_slot, after_in_parent=_keep_slot)
    for kind, function in stock.default_collate_fn_map.items():
        stock.default_collate_fn_map[kind] = _REPLACEMENTS.get(function, function)
    stock.collate = _collate


def _leave_slot():
    # A child that user code forks must not write into its parent's slot.
    global _desk
    if _desk is not None:
        _desk.leave_slot()
        _desk = None


def _keep_slot():
    if _desk is not None:
        _desk.keep_slot()


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


def _collate(batch, *, collate_fn_map=None):
    if _slot_is_open() and _is_untouched(collate_fn_map):
        return _desk.collate(batch, collate_fn_map, _stock_collate)
    return _stock_collate(batch, collate_fn_map=collate_fn_map)


def _is_untouched(functions):
    """Whether a map of collate functions is torch's own and holds nothing of the user's."""
    return functions is stock.default_collate_fn_map and tuple(functions.items()) == _UNTOUCHED


def _collate_tensors(batch, *, collate_fn_map=None):
    stacked = _gather("tensors", batch)
    if stacked is None:
        stacked = _stack_into_slot(batch)
    if stacked is None:
        stacked = stock.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return stacked


def _gather(what, batch):
    return _desk.gather(what, batch) if _slot_is_open() else None


def _stack_into_slot(batch):
    """Stack alike tensors of any strides into the slot; None where torch may promote or refuse."""
    if not _slot_is_open() or type(batch) not in (list, tuple):
        return None
    first = batch[0]
    if not all(_is_alike(sample, first) for sample in batch):
        return None
    out = _desk.empty((len(batch), *first.shape), first.dtype)
    return None if out is None else torch.stack(batch, 0, out=out)


def _is_alike(sample, first):
    return (
        type(sample) is torch.Tensor
        # A nested tensor has no shape to ask for.
        and not sample.is_nested
        and sample.layout == torch.strided
        and sample.device.type == "cpu"
        and not sample.requires_grad
        and sample.dtype == first.dtype
        and sample.shape == first.shape
    )


def _collate_arrays(batch, *, collate_fn_map=None):
    stacked = None
    # A tensor entry of the user's shall see the samples, as torch's array function shows them.
    if collate_fn_map is not None and collate_fn_map.get(torch.Tensor) is _collate_tensors:
        stacked = _gather("arrays", batch)
    if stacked is None:
        stacked = stock.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)
    return stacked


def _collate_ints(batch, *, collate_fn_map=None):
    stacked = _gather("ints", batch)
    if stacked is None:
        stacked = stock.collate_int_fn(batch, collate_fn_map=collate_fn_map)
    return stacked


def _collate_floats(batch, *, collate_fn_map=None):
    stacked = _gather("floats", batch)
    if stacked is None:
        stacked = stock.collate_float_fn(batch, collate_fn_map=collate_fn_map)
    return stacked


_REPLACEMENTS = {
    stock.collate_tensor_fn: _collate_tensors,
    stock.collate_numpy_array_fn: _collate_arrays,
    stock.collate_int_fn: _collate_ints,
    stock.collate_float_fn: _collate_floats,
}
# torch's map as install() leaves it when nobody else changed it. A torch with another map is served
# by its own collate(), with the replacements above.
_UNTOUCHED = (
    (torch.Tensor, _collate_tensors),
    (numpy.ndarray, _collate_arrays),
    ((numpy.bool_, numpy.number, numpy.object_), stock.collate_numpy_scalar_fn),
    (float, _collate_floats),
    (int, _collate_ints),
    (str, stock.collate_str_fn),
    (bytes, stock.collate_str_fn),
)
