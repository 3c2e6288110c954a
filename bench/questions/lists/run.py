"""One row in a process of its own, so that its memory is its own."""

import gc
import multiprocessing.context
import os
import pickle
import time
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

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
        part: "memory": epochs, and what all processes take after each; "start": the first batch.
        store: A name of STORES, or None for a dataset without records.
        loader: "ours" or "torch".
        pairs: Starts with the store, each beside one without it.
    """

    part: str
    store: str | None
    loader: str
    workers: int
    context: str
    count: int
    epochs: int = 1
    pairs: int = 1


def run(row: Row) -> dict:
    """Return the figures of its part."""
    return _PARTS[row.part](row)


def _memory(row: Row) -> dict:
    begin = time.perf_counter()
    store = None if row.store is None else STORES[row.store](annotations(row.count))
    build_s = time.perf_counter() - begin
    loader = _loader(row, figures(store, row.count), shuffle=True)
    epochs = [_epoch(loader) for _ in range(row.epochs)]
    expected = numpy.array([figures_of(record) for record in annotations(row.count)])
    return {
        "pss_mb": [pss / 1e6 for _, _, pss in epochs],
        "data_mb": getattr(store, "nbytes", 0) / 1e6,
        "build_s": build_s,
        "epoch_s": min(seconds for _, seconds, _ in epochs),
        "correct": store is None or all(numpy.array_equal(found, expected) for found, *_ in epochs),
    }


def _epoch(loader) -> tuple[numpy.ndarray, float, int]:
    """Return the samples in the order of their records, seconds, and the bytes of all processes."""
    begin = time.perf_counter()
    found = numpy.concatenate(list(map(numpy.array, loader)))
    seconds = time.perf_counter() - begin
    pids = [os.getpid(), *descendants(os.getpid())]
    pss = sum(memory_bytes(pid)[part] for pid in pids for part in ("Pss_Anon", "Pss_Shmem"))
    return found[found[:, 0].argsort()], seconds, pss


def _start(row: Row) -> dict:
    """Start workers over the store and over nothing, in turns and in pairs, the other one first."""
    store = STORES[row.store](paths(row.count))
    datasets = {"nothing": lengths(None, row.count), "store": lengths(store, row.count)}
    expected = {"nothing": [0] * _BATCH, "store": [len(path) for path in paths(_BATCH)]}
    _first_batch(row, datasets["nothing"])  # what is read from a disk is there from now on
    runs = in_turns(datasets, row.pairs, lambda name: _first_batch(row, datasets[name]))
    pairs = zip(runs["store"], runs["nothing"], strict=True)
    return {
        "first_batch_s": [run["s"] for run in runs["store"]],
        "above_s": [one["s"] - other["s"] for one, other in pairs],
        **_sent(datasets["store"]),
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


def _sent(dataset: Dataset) -> dict:
    """Measure what one worker is sent: pickled as for its start, unpickled, and a record read."""
    multiprocessing.context.set_spawning_popen(_Starting())
    try:
        begin = time.perf_counter()
        pickled = ForkingPickler.dumps(dataset)
        pickled_s = time.perf_counter() - begin
    finally:
        multiprocessing.context.set_spawning_popen(None)
    begin = time.perf_counter()
    pickle.loads(pickled)[0]
    unpickled_s = time.perf_counter() - begin
    sizes = {"sent_kb": len(pickled) / 1e3}
    return {**sizes, "pickle_ms": pickled_s * 1e3, "unpickle_ms": unpickled_s * 1e3}


class _Starting:
    """Stands for the start of a process: descriptors stay here."""

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

    def DupFd(self, descriptor: int) -> "_Carried":
        return _Carried(descriptor)


class _Carried:
    """A descriptor on its way."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def detach(self) -> int:
        return os.dup(self._descriptor)


def _loader(row: Row, dataset, shuffle: bool = False):
    return LOADERS[row.loader](
        dataset, batch_size=_BATCH, num_workers=row.workers, persistent_workers=True,
        multiprocessing_context=row.context, shuffle=shuffle,
    )  # fmt: skip


_PARTS = {"memory": _memory, "start": _start}
