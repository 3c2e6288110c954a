"""
The cheapest collate there is: into buffers that are allocated, touched and kept.

Every way to fill a buffer is tried on the workload's own samples and the fastest is kept, leaf by
leaf, so the limit does not depend on one library's copy. Nothing here is shared memory.
"""

import struct
import time
from collections.abc import Callable
from operator import itemgetter

import numpy as np
import torch
from torch.utils.data import default_collate

from bench import native
from bench.batches import leaves, payload_bytes
from bench.loads import as_columns, as_it_is
from bench.loads.pools import Workload

_TRIALS = 5


def warm_collate(workload: Workload, samples: list) -> Callable[[list], object]:
    """Make what collates batches into buffers that are filled anew; samples: a full batch."""
    if workload.collate_fn is None:
        return _warm_default(samples)
    if isinstance(samples[0], np.ndarray):
        return _fastest(_list_fills(samples), samples)
    if workload.collate_fn in (as_it_is, as_columns):
        return _copying(workload.collate_fn, samples)
    return workload.collate_fn  # allocates by itself, from a heap that is warm after a few batches


def _warm_default(samples: list) -> Callable:
    """Collate as torch's default does for a flat tuple or dict of leaves."""
    if isinstance(samples[0], dict):
        keys = list(samples[0])
        columns = [list(map(itemgetter(key), samples)) for key in keys]
        fills = [_fastest_fill(column) for column in columns]
        plan = [(key, itemgetter(key), fill) for key, fill in zip(keys, fills, strict=True)]
        return lambda rows: {key: fill(list(map(get, rows))) for key, get, fill in plan}
    fills = [_fastest_fill(column) for column in zip(*samples, strict=True)]
    return lambda rows: [
        fill(column) for fill, column in zip(fills, zip(*rows, strict=True), strict=True)
    ]


def _fastest_fill(column) -> Callable:
    warm = default_collate(list(column)).clone()
    if isinstance(column[0], torch.Tensor):
        return _fastest(_tensor_fills(warm), column)
    return _fastest(_number_fills(warm), column)


def _tensor_fills(warm: torch.Tensor) -> list[Callable]:
    gather, address, size = native.load().gather_tensors, warm.data_ptr(), warm.nbytes

    def stack(column):
        return torch.stack(column, out=warm)

    def gather_natively(column):  # the product's copy: the limit must not copy slower
        if not gather(torch.Tensor, column, address, size):
            raise ValueError("these are not contiguous tensors of one dtype and shape")
        return warm

    return [stack, gather_natively]


def _copying(collate: Callable, samples: list) -> Callable:
    """Copy each tensor of a batch that collate makes without a copy, of whatever shape they are."""
    gather = native.load().gather_unlike
    room = torch.zeros(4 * payload_bytes(samples), dtype=torch.uint8)

    def copy(rows):
        batch = collate(rows)
        parts = batch if type(batch[0]) is torch.Tensor else leaves(batch)
        tensors = [part for part in parts if type(part) is torch.Tensor]
        if not gather(torch.Tensor, tensors, room.data_ptr(), room.nbytes):
            raise ValueError("these tensors are not contiguous, or too large")
        return batch

    return copy


def _list_fills(samples: list) -> list[Callable]:
    """Copy each array of a list into a buffer of its own shape."""
    arrays, native_copy = [np.zeros_like(sample) for sample in samples], native.load().copy_buffers

    def copy(rows):
        for array, row in zip(arrays, rows, strict=True):
            np.copyto(array, row)
        return arrays

    def copy_natively(rows):
        if not native_copy(arrays, rows):
            raise ValueError("these arrays do not have the buffers' sizes")
        return arrays

    return [copy, copy_natively]


def _number_fills(warm: torch.Tensor) -> list[Callable]:
    view = warm.numpy()
    pack = struct.Struct(f"{len(view)}{view.dtype.char}").pack_into

    def assign(column):
        view[:] = column
        return warm

    def pack_numbers(column):
        pack(view, 0, *column)
        return warm

    return [assign, pack_numbers]


def _fastest(ways: list[Callable], column) -> Callable:
    """Keep the way with the shortest trial; trials alternate, so a disturbance hits all ways."""
    ways = [way for way in ways if _works(way, column)]
    best = {way: float("inf") for way in ways}
    for _ in range(_TRIALS):
        for way in ways:
            best[way] = min(best[way], _seconds(way, column))
    return min(best, key=best.get)


def _works(way: Callable, column) -> bool:
    """Native copies refuse samples that are not alike; those are left to torch and numpy."""
    try:
        way(column)
    except (ValueError, struct.error):
        return False
    return True


def _seconds(way: Callable, column) -> float:
    begin = time.perf_counter()
    way(column)
    return time.perf_counter() - begin
