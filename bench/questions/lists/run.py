"""One row in a process of its own, so that its memory is its own: its memory, or its start."""

import gc
import time
from functools import partial
from statistics import median
from typing import Any

import numpy

from bench.driver import in_turns
from bench.loaders import LOADERS
from bench.loads.records import STORES, annotations, figures, figures_of, lengths, paths
from bench.usage import memory_bytes, process_ids

_BATCH = 256


def memory(
    store: str | None, loader: str, workers: int, context: str, count: int, epochs: int
) -> dict:
    """Measure the memory of all processes after each epoch over annotations; None: over nothing."""
    records = None if store is None else STORES[store](annotations(count))
    loaded = _open(loader, figures(records, count), workers, context, shuffle=True)
    found = [_epoch(loaded) for _ in range(epochs)]
    expected = numpy.array([figures_of(record) for record in annotations(count)])
    return {
        "pss_mb": [mb for _, mb in found],
        "data_mb": getattr(records, "nbytes", 0) / 1e6,
        "correct": store is None or all(numpy.array_equal(rows, expected) for rows, _ in found),
    }


def _epoch(loader: Any) -> tuple[numpy.ndarray, float]:
    """Return the samples in the order of their records, and the MB of all processes."""
    found = numpy.concatenate(list(map(numpy.array, loader)))
    accounts = map(memory_bytes, process_ids())
    held = sum(account["Pss_Anon"] + account["Pss_Shmem"] for account in accounts)
    return found[found[:, 0].argsort()], held / 1e6


def starts(store: str, loader: str, workers: int, count: int, pairs: int) -> dict:
    """Time the first batch over paths and over nothing, in turns, the other one first in each."""
    records = STORES[store](paths(count))
    datasets = {"nothing": lengths(None, count), "store": lengths(records, count)}
    expected = {"nothing": [0] * _BATCH, "store": [len(path) for path in paths(_BATCH)]}
    measure = partial(_first_batch, loader, workers)
    measure(datasets["nothing"])  # what is read from a disk is there from now on
    runs = in_turns(datasets, pairs, lambda name: measure(datasets[name]))
    beside = zip(runs["store"], runs["nothing"], strict=True)
    return {
        "first batch, s": median(run["s"] for run in runs["store"]),
        "above no paths, s": median(one["s"] - other["s"] for one, other in beside),
        "correct": all(run["first"] == expected[name] for name in runs for run in runs[name]),
    }


def _first_batch(loader: str, workers: int, dataset: Any) -> dict:
    loaded = _open(loader, dataset, workers, "spawn")
    begin = time.perf_counter()
    first = next(iter(loaded)).tolist()
    seconds = time.perf_counter() - begin
    del loaded
    gc.collect()  # an iterator and its loader refer to each other
    return {"s": seconds, "first": first}


def _open(loader: str, dataset: Any, workers: int, context: str, shuffle: bool = False) -> Any:
    options = {"persistent_workers": True, "multiprocessing_context": context, "shuffle": shuffle}
    return LOADERS[loader](dataset, _BATCH, num_workers=workers, **options)
