"""
SPDL's benchmark of its arena: one process hands over arrays of 32 MiB, as fast as it can.

As theirs does, the producer makes its arrays beforehand, and tensors anew each time, because torch
keeps a tensor that was sent once in shared memory. Theirs are zeros; each of ours has its number.
"""

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from bench.loads import Made, as_it_is
from bench.questions.claims.claim import Claim, Each

_BYTES = 32 << 20
_ITEMS = 16
_AHEAD = 2
_SEGMENTS = _ITEMS + 2  # theirs: as many as an epoch has, and two
_POOL = "SPDL pool"
_OPTIONS = {
    "batch_size": None, "collate_fn": as_it_is, "num_workers": 1, "prefetch_factor": _AHEAD,
}  # fmt: skip


class Payloads(IterableDataset):
    """Items of one array or tensor."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: list = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._kind == "numpy" and not self._made:
            self._made = [_item(self._kind, number) for number in range(_ITEMS)]
        for number in range(_ITEMS):
            yield self._made[number] if self._made else _item(self._kind, number)


def _item(kind: str, number: int) -> dict[str, Any]:
    make = np.full if kind == "numpy" else torch.full
    dtype = np.float32 if kind == "numpy" else torch.float32
    return {"data": make((_BYTES // 4,), float(number), dtype=dtype)}


def _pool(kind: str) -> Each:
    pipeline = importlib.import_module("spdl.pipeline")
    arena = pipeline.SharedMemorySegmentPool(segment_size=2 * _BYTES, count=_SEGMENTS)
    built = pipeline.PipelineBuilder().add_source(Payloads(kind)).add_sink(buffer_size=_AHEAD)
    source = pipeline.run_pipeline_in_subprocess(
        built.get_config(), num_threads=1, arena=arena, buffer_size=_AHEAD
    )
    return Each(source, close=source._shutdown)  # it leaves that to the collector


def _claim(kind: str) -> Claim:
    free = Made(_ITEMS, partial(_item, kind))
    return Claim(
        _ITEMS, Payloads(kind), free, _OPTIONS, others={_POOL: partial(_pool, kind)},
        needs={_POOL: "spdl.pipeline"}, is_moved=True,
    )  # fmt: skip


CLAIMS = {"arena, ndarrays": _claim("numpy"), "arena, tensors": _claim("torch")}
