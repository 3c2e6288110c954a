"""
Grain: spawned workers, and a shared-memory segment per array that is made anew for each batch.

Only ndarrays travel in shared memory, so the worker hands over the tensors' memory as ndarrays and
the trainer wraps it in tensors again. Workers always start by spawn. They last over epochs because
an epoch is a part of an endless stream, which is how its users repeat a dataset.
"""

import importlib
from itertools import islice

from bench.contenders._peers import PREFETCH, Collate, missing, restorer
from bench.workloads import Workload

label = "Grain"


def available() -> str | None:
    """Say why this contender cannot run here, or None."""
    return missing("grain")


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> "GrainLoader":
    """Make the loader; `context` is more than it can do."""
    return GrainLoader(workload, workers, persistent)


class GrainLoader:
    """An endless stream of batches, cut into epochs."""

    def __init__(self, workload: Workload, workers: int, persistent: bool):
        self._batches = workload.batches
        self._stream = _stream(workload, workers)
        self._restore = restorer(workload)
        self._persistent = persistent
        self._iterator = None

    def __iter__(self):
        self._iterator = self._iterator or iter(self._stream)
        yield from map(self._restore, islice(self._iterator, self._batches))
        if not self._persistent:
            self.close()

    def close(self) -> None:
        """End the workers."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()


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
