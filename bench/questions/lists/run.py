"""One row in a process of its own, so that its memory is its own."""

import gc
import os
import time
from dataclasses import dataclass
from statistics import median

import numpy
from torch.utils.data import Dataset

from bench.driver import in_turns
from bench.loaders import LOADERS
from bench.loads.records import STORES, annotations, figures, figures_of, lengths, paths
from bench.usage import descendants, memory_bytes

_BATCH = 256


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        store: A name of STORES, or None for a dataset without records.
        loader: "ours" or "torch".
        count: Of annotations, or of paths if there are pairs.
        pairs: Starts over paths, each beside one without them; 0: epochs over annotations.
    """

    store: str | None
    loader: str
    workers: int
    context: str
    count: int
    epochs: int = 1
    pairs: int = 0


def run(row: Row) -> dict:
    """Measure the memory of all processes after each epoch, or the time to the first batch."""
    return _starts(row) if row.pairs else _memory(row)


def _memory(row: Row) -> dict:
    store = None if row.store is None else STORES[row.store](annotations(row.count))
    loader = _loader(row, figures(store, row.count), shuffle=True)
    epochs = [_epoch(loader) for _ in range(row.epochs)]
    expected = numpy.array([figures_of(record) for record in annotations(row.count)])
    return {
        "pss_mb": [pss / 1e6 for _, pss in epochs],
        "data_mb": getattr(store, "nbytes", 0) / 1e6,
        "correct": store is None or all(numpy.array_equal(found, expected) for found, _ in epochs),
    }


def _epoch(loader) -> tuple[numpy.ndarray, int]:
    """Return the samples in the order of their records, and the bytes of all processes."""
    found = numpy.concatenate(list(map(numpy.array, loader)))
    pids = [os.getpid(), *descendants(os.getpid())]
    pss = sum(memory_bytes(pid)[part] for pid in pids for part in ("Pss_Anon", "Pss_Shmem"))
    return found[found[:, 0].argsort()], pss


def _starts(row: Row) -> dict:
    """Start workers over the store and over nothing, in turns and in pairs, the other one first."""
    store = STORES[row.store](paths(row.count))
    datasets = {"nothing": lengths(None, row.count), "store": lengths(store, row.count)}
    expected = {"nothing": [0] * _BATCH, "store": [len(path) for path in paths(_BATCH)]}
    _first_batch(row, datasets["nothing"])  # what is read from a disk is there from now on
    runs = in_turns(datasets, row.pairs, lambda name: _first_batch(row, datasets[name]))
    pairs = zip(runs["store"], runs["nothing"], strict=True)
    return {
        "first batch, s": median(run["s"] for run in runs["store"]),
        "above no paths, s": median(one["s"] - other["s"] for one, other in pairs),
        "correct": all(run["first"] == expected[name] for name in runs for run in runs[name]),
    }


def _first_batch(row: Row, dataset: Dataset) -> dict:
    loader = _loader(row, dataset)
    begin = time.perf_counter()
    first = next(iter(loader)).tolist()
    seconds = time.perf_counter() - begin
    del loader
    gc.collect()  # an iterator and its loader refer to each other
    return {"s": seconds, "first": first}


def _loader(row: Row, dataset, shuffle: bool = False):
    return LOADERS[row.loader](
        dataset, batch_size=_BATCH, num_workers=row.workers, persistent_workers=True,
        multiprocessing_context=row.context, shuffle=shuffle,
    )  # fmt: skip
