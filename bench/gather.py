"""
The cheapest collate there is: into memory that is allocated, touched and kept.

Tensors and ndarrays are copied by native/gather.c. Nothing here is shared memory.
"""

import struct
from collections.abc import Callable
from operator import itemgetter

import torch
from torch.utils.data import default_collate

from bench import native
from bench.batches import leaves, payload_bytes
from bench.loads import as_columns, as_it_is
from bench.loads.pools import Workload

Fill = Callable[[list], torch.Tensor]


def warm_collate(workload: Workload, samples: list) -> Callable[[list], object]:
    """Make what collates batches into buffers that are filled anew; samples: a full batch."""
    if workload.collate_fn is None:
        return _default(samples)
    if workload.collate_fn in (as_it_is, as_columns):
        return _copying(workload.collate_fn, samples)
    return workload.collate_fn  # allocates by itself, from a heap that is warm after a few batches


def _default(samples: list) -> Callable[[list], object]:
    """Collate as torch's default does for a flat tuple or dict of leaves."""
    if isinstance(samples[0], dict):
        keys = {key: itemgetter(key) for key in samples[0]}
        fills = {key: _fill(list(map(get, samples))) for key, get in keys.items()}
        return lambda rows: {key: fills[key](list(map(get, rows))) for key, get in keys.items()}
    fills = [_fill(column) for column in zip(*samples, strict=True)]
    return lambda rows: [
        fill(column) for fill, column in zip(fills, zip(*rows, strict=True), strict=True)
    ]


def _fill(column) -> Fill:
    """Make what fills a tensor with such a column: of tensors, or of numbers."""
    warm = default_collate(list(column)).clone()
    if isinstance(column[0], torch.Tensor):
        return _gathering(warm)
    view = warm.numpy()
    pack = struct.Struct(f"{len(view)}{view.dtype.char}").pack_into

    def pack_numbers(column):
        pack(view, 0, *column)
        return warm

    return pack_numbers


def _copying(collate: Callable, samples: list) -> Callable[[list], object]:
    """Copy each leaf of a batch that collate makes without a copy, of whatever shape they are."""
    gather = _gathering(torch.zeros(2 * payload_bytes(samples), dtype=torch.uint8))

    def copy(rows):
        batch = collate(rows)
        gather(batch if type(batch) is list else leaves(batch))
        return batch

    return copy


def _gathering(warm: torch.Tensor) -> Fill:
    gather, address, size = native.load().gather, warm.data_ptr(), warm.nbytes

    def fill(column):
        gather(torch.Tensor, column, address, size)
        return warm

    return fill
