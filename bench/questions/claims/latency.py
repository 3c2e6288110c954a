"""
ConcurrentDataloader's load: each sample waits, as for an object store, and computes nothing.

Its workers fetch the samples of a batch by threads; 12 times the rate of torch's loader is what its
paper says at best. It is not on PyPI, so its way is here what a dataset of one's own can do:
`__getitems__` with a pool of threads.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from bench.loads import Made
from bench.questions.claims.claim import Claim, living

_WAIT_S = 0.020
_BATCH, _BATCHES = 32, 12
_SAMPLES = _BATCH * _BATCHES
_OPTIONS = {"batch_size": _BATCH, "num_workers": 2}
_THREADS = 16


def row(index: int) -> torch.Tensor:
    """Make a sample at no cost."""
    return torch.arange(64) + index


def _fetch(index: int) -> torch.Tensor:
    time.sleep(_WAIT_S)
    return row(index)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS)


class ByThreads(Made):
    """The same samples, those of a batch at the same time."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return list(_threads().map(self.__getitem__, indices))


CLAIMS = {
    "20 ms a sample": Claim(
        _BATCHES,
        Made(_SAMPLES, _fetch),
        Made(_SAMPLES, row),
        _OPTIONS,
        {"fetch_threads": _THREADS},
        {
            "threads in each worker": lambda: living(
                "torch", ByThreads(_SAMPLES, _fetch), **_OPTIONS
            )
        },
    )
}
