"""
dataloader-rs, whose workers are threads in Rust: samples that cost nothing, that wait, and arrays.

It says 4.9 to 6.6 times the rate of torch's loader where samples cost nothing, 3.2 to 3.9 where
they wait, and for arrays 1.0 to 1.5 with the interpreter's lock, under which it is here. It needs
Python 3.13. Its batches are collated by numpy's `stack`, and wrapped in a tensor.
"""

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.loads import Made
from bench.questions.claims.claim import Claim, Each

_BATCH = 32
_WORKERS = 2
_AT_ONCE = 16
_WAIT_S = 0.002
_RUST = "dataloader-rs"


def _nothing(index: int) -> np.ndarray:
    return np.full(16, index, dtype=np.float32)


def _waiting(index: int) -> np.ndarray:
    time.sleep(_WAIT_S)
    return _nothing(index)


def _array(index: int) -> np.ndarray:
    """Do to a picture what augmentation does: to float, normalised, flipped."""
    picture = np.full((3, 128, 128), index % 251, dtype=np.uint8).astype(np.float32)
    picture -= 120.0
    picture /= 60.0
    return np.ascontiguousarray(picture[:, :, :: 1 - 2 * (index % 2)])


def _rust(make: Callable[[int], Any], batches: int, at_once: int) -> Each:
    module = importlib.import_module("dataloader_rs")

    class Samples(module.PyDataset):
        def __len__(self) -> int:
            return _BATCH * batches

        def __getitem__(self, index: int) -> Any:
            return make(index)

    loader = module.PyDataloader(
        Samples(), _BATCH, num_workers=_WORKERS, collate_fn=np.stack, items_in_parallel=at_once
    )
    return Each(loader, torch.from_numpy)


def _claim(make: Callable[[int], Any], batches: int, at_once: int = 1) -> Claim:
    return Claim(
        batches,
        Made(_BATCH * batches, make),
        Made(_BATCH * batches, _nothing if make is _waiting else make),
        {"batch_size": _BATCH, "num_workers": _WORKERS},
        {"fetch_threads": at_once} if at_once > 1 else {},
        {_RUST: partial(_rust, make, batches, at_once)},
        needs={_RUST: "dataloader_rs"},
    )


CLAIMS = {
    "threads, samples of nothing": _claim(_nothing, 400),
    "threads, 2 ms a sample": _claim(_waiting, 60, _AT_ONCE),
    "threads, arrays": _claim(_array, 60),
}
