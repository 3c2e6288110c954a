"""
Grain: spawned workers, and a shared-memory segment per array that is made anew for each batch.

Only ndarrays travel in shared memory, so the worker hands over the tensors' memory as ndarrays and
the trainer wraps it in tensors again. Workers always start by spawn. They last over epochs because
an epoch is a part of an endless stream, which is how its users repeat a dataset.
"""

import importlib
from functools import partial

from bench.contenders._peers import PREFETCH, Collate, Stream, missing, restorer
from bench.loads.pools import Workload

label = "Grain"
available = partial(missing, "grain")


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> Stream:
    """Make the loader; `context` is more than it can do."""
    stream = _stream(workload, workers)
    return Stream(workload, persistent, lambda: iter(stream), restorer(workload))


def _stream(workload: Workload, workers: int):
    """Batch before the workers share the work: each makes whole batches, in torch's order."""
    grain = importlib.import_module("grain")
    batches = grain.MapDataset.source(workload.dataset()).batch(
        workload.batch_size, batch_fn=Collate(workload, to_arrays=True)
    )
    # Threads are for reading files; the samples lie in memory.
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    sharing = grain.MultiprocessingOptions(workers, per_worker_buffer_size=PREFETCH)
    return batches.repeat().to_iter_dataset(reading).mp_prefetch(sharing)
