"""What the peers share: how one collates, its batches as ndarrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from bench.loads.pools import Workload

PREFETCH = 2  # batches ahead per worker, torch's default
_OF_MANY_SIZES = ("text", "ragged", "detection", "graphs")


class Collate:
    """
    The workload's own collate function, in one thread as in every DataLoader's worker.

    Args:
        to_arrays: Give ndarrays instead of tensors, for a peer that moves nothing else well.
    """

    def __init__(self, workload: Workload, to_arrays: bool = False):
        self._collate = workload.collate_fn or default_collate
        self._to_arrays = to_arrays

    def __call__(self, samples: list):
        # Not once per process: a peer's worker has no common place for it, and it costs 1 µs.
        torch.set_num_threads(1)
        batch = self._collate(samples)
        return as_arrays(batch) if self._to_arrays else batch


class Share:
    """The batches of one of several workers, every n-th one; each iteration starts anew."""

    def __init__(self, workload: Workload, worker: int, workers: int, collate: Callable):
        self._dataset = workload.dataset()
        self._requests = workload.requests()[worker::workers]
        self._collate = collate

    def __iter__(self):
        for request in self._requests:
            yield self._collate([self._dataset[index] for index in request])


def largest(workload: Workload, collate: Callable, size_of: Callable[[Any], int]) -> int:
    """Measure one batch, or all of them when they differ in size."""
    sizes = map(size_of, Share(workload, 0, 1, collate))
    return max(sizes) if workload.name in _OF_MANY_SIZES else next(sizes)


class Stream:
    """
    An endless stream of batches, cut into epochs: its workers are ahead when an epoch begins.

    Args:
        start: Starts the workers and returns an iterator with a `close()`.
        restore: Makes what torch's collate function would have made of a batch.
    """

    def __init__(self, workload: Workload, start: Callable, restore: Callable):
        self._batches = workload.batches
        self._start, self._restore = start, restore
        self._iterator: Any = None

    def __iter__(self):
        self._iterator = self._iterator or self._start()
        for _ in range(self._batches):  # granular's iter() would start the workers once more
            yield self._restore(next(self._iterator))

    def close(self) -> None:
        """End the workers."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()


def as_arrays(batch):
    """Give the batch with an ndarray over the memory of each tensor; nothing is copied."""
    if isinstance(batch, dict):
        return {key: as_arrays(part) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(as_arrays, batch))
    return batch.numpy() if isinstance(batch, torch.Tensor) else batch


def restorer(workload: Workload) -> Callable:
    """
    Return what makes torch's batch of what a peer had `as_arrays`, in the trainer.

    Some have tuples for lists, sort keys, or have a subclass of ndarray; no memory is copied.
    """
    return partial(_made, _makers(next(iter(workload.expected()))))


def _makers(batch):
    """Give the containers of a batch with, for each leaf, what makes its kind of an ndarray."""
    if isinstance(batch, dict):
        return {key: _makers(part) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(_makers, batch))
    if isinstance(batch, torch.Tensor):
        return torch.from_numpy
    return np.asarray if isinstance(batch, np.ndarray) else lambda value: value


def _made(makers, batch):
    if isinstance(makers, dict):
        return {key: _made(each, batch[key]) for key, each in makers.items()}
    if isinstance(makers, (list, tuple)):
        return type(makers)(_made(*each) for each in zip(makers, batch, strict=True))
    return makers(batch)
