"""
granular: workers write one sample at a time into a shared batch, a queue message per sample.

It has no collate function: a batch is a dict of ndarrays of fixed shapes. A tuple goes in as a dict
of its places and comes out as a list; ndarrays become tensors, and a list of records is the rows of
one array.
"""

import importlib
import multiprocessing
from functools import partial

import numpy as np
import torch

from bench.contenders import Contender
from bench.contenders._peers import PREFETCH, Stream
from bench.driver import missing
from bench.loads import as_it_is
from bench.loads.pools import Workload


def _refuses(workload: Workload) -> str | None:
    if workload.collate_fn not in (None, as_it_is) or workload.name == "ragged":
        return "samples of one shape only, and no collate function"
    return None


def _make(workload: Workload, workers: int) -> Stream:
    source, loader = Source(workload.dataset()), importlib.import_module("granular").Loader
    options = {"prefetch": PREFETCH * workers, "workers": workers}
    options["mp"] = multiprocessing.get_context("fork")
    start = partial(loader, source, workload.batch_size, **options)
    return Stream(workload, lambda: iter(start()), _restorer(workload))


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


def _restorer(workload: Workload):
    if workload.collate_fn is as_it_is:
        return lambda batch: list(batch["0"])
    if isinstance(workload.dataset()[0], dict):
        return lambda batch: {key: torch.from_numpy(array) for key, array in batch.items()}
    return lambda batch: [torch.from_numpy(array) for array in batch.values()]


def _array(part) -> np.ndarray:
    return part.numpy() if isinstance(part, torch.Tensor) else np.asarray(part)


CONTENDERS = {"granular": Contender("granular", _make, partial(missing, "granular"), _refuses)}
