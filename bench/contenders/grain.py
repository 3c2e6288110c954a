"""
Grain: spawned workers, and a shared-memory segment per array that is made anew for each batch.

Only ndarrays travel so, hence arrays over the tensors' memory are handed over and the trainer wraps
them in tensors again. Workers last over epochs because an epoch is a part of an endless stream,
which is how its users repeat a dataset.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.contenders import Contender
from bench.contenders._peers import PREFETCH, Collate, Stream, as_arrays, restorer
from bench.driver import missing
from bench.loads.pools import Workload


def _make(batched: Callable[[Any, Workload], Any], workload: Workload, workers: int) -> Stream:
    """Make the loader: each worker makes whole batches, in torch's order."""
    grain = importlib.import_module("grain")
    importlib.import_module("absl.flags").FLAGS(["bench"])  # which it reads
    batches = batched(grain.MapDataset.source(workload.dataset()), workload)
    # Threads are for reading files; the samples lie in memory.
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    sharing = grain.MultiprocessingOptions(workers, per_worker_buffer_size=PREFETCH)
    stream = batches.repeat().to_iter_dataset(reading).mp_prefetch(sharing)
    return Stream(workload, lambda: iter(stream), restorer(workload))


def _stacked(samples: Any, workload: Workload) -> Any:
    return samples.map(as_arrays).batch(workload.batch_size)


def _collated(samples: Any, workload: Workload) -> Any:
    collate = Collate(workload, to_arrays=True)
    return samples.batch(workload.batch_size, batch_fn=collate)


def _refuses(workload: Workload) -> str | None:
    return "it has its own collate function: see grain_collate" if workload.collate_fn else None


_is_here = partial(missing, "grain")
CONTENDERS = {
    "grain": Contender("Grain", partial(_make, _stacked), _is_here, _refuses),
    "grain_collate": Contender("Grain, collate", partial(_make, _collated), _is_here),
}
