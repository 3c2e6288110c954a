"""
granular: workers write one sample at a time into a shared batch, a queue message per sample.

It has no collate function: a batch is a dict of ndarrays of fixed shapes. A tuple goes in as a dict
of its places and comes out as a list; ndarrays become tensors, and a list of records is the rows of
one array. Batches of rows that differ in shape it cannot make. An epoch is a part of the endless
stream that its loader is.
"""

import importlib
import multiprocessing

import numpy as np
import torch

from bench.contenders._peers import PREFETCH, missing
from bench.workloads import Workload, keep_list

label = "granular"


def available() -> str | None:
    """Say why this contender cannot run here, or None."""
    return missing("granular")


def refuses(workload: Workload) -> str | None:
    """Say why it cannot do this workload, or None."""
    if workload.collate_fn not in (None, keep_list):
        return "samples of one shape only, and no collate function"
    return None


def make_loader(
    workload: Workload, workers: int, persistent: bool, context: str
) -> "GranularLoader":
    """Make the loader."""
    return GranularLoader(workload, workers, persistent, context)


class Source:
    """A sample as a dict of ndarrays, for any step of an endless stream."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __call__(self, step: int) -> dict:
        sample = self._dataset[step % len(self._dataset)]
        if isinstance(sample, dict):
            return {key: _array(part) for key, part in sample.items()}
        parts = sample if isinstance(sample, tuple) else (sample,)
        return {str(place): _array(part) for place, part in enumerate(parts)}


class GranularLoader:
    """Its loader, cut into epochs, with its batches in the workload's containers."""

    def __init__(self, workload: Workload, workers: int, persistent: bool, context: str):
        self._workload = workload
        self._source = Source(workload.dataset())
        self._workers = workers
        self._persistent = persistent
        self._context = multiprocessing.get_context(context)
        self._restore = _restorer(workload)
        self._loader = None

    def __iter__(self):
        self._loader = self._loader or iter(self._make())
        for _ in range(self._workload.batches):  # its iter() would start the workers once more
            yield self._restore(next(self._loader))
        if not self._persistent:
            self.close()

    def close(self) -> None:
        """End the workers."""
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def _make(self):
        return importlib.import_module("granular").Loader(
            self._source,
            self._workload.batch_size,
            prefetch=PREFETCH * self._workers,
            workers=self._workers,
            mp=self._context,
        )


def _restorer(workload: Workload):
    if workload.collate_fn is keep_list:
        return lambda batch: list(batch["0"])
    if isinstance(workload.dataset()[0], dict):
        return lambda batch: {key: torch.from_numpy(array) for key, array in batch.items()}
    return lambda batch: [torch.from_numpy(array) for array in batch.values()]


def _array(part) -> np.ndarray:
    return part.numpy() if isinstance(part, torch.Tensor) else np.asarray(part)
