"""
Grain: spawned workers, and a shared-memory segment per array that is made anew for each batch.

Only ndarrays travel in shared memory, so arrays over the tensors' memory are handed over and the
trainer wraps them in tensors again. Workers always start by spawn. They last over epochs because an
epoch is a part of an endless stream, which is how its users repeat a dataset.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.contenders._peers import PREFETCH, Stream, missing, restorer
from bench.loads.pools import Workload

available = partial(missing, "grain")


def stream_of(
    workload: Workload, workers: int, persistent: bool, batch: Callable[[Any], Any]
) -> Stream:
    """
    Make the loader: each worker makes whole batches, in torch's order.

    Args:
        batch: Makes Grain's dataset of batches of its dataset of samples.
    """
    grain = importlib.import_module("grain")
    batches = batch(grain.MapDataset.source(workload.dataset()))
    # Threads are for reading files; the samples lie in memory.
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    sharing = grain.MultiprocessingOptions(workers, per_worker_buffer_size=PREFETCH)
    stream = batches.repeat().to_iter_dataset(reading).mp_prefetch(sharing)
    return Stream(workload, persistent, lambda: iter(stream), restorer(workload))
