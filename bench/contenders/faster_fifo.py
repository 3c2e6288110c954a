"""faster-fifo: a ring of bytes under a mutex; every batch is pickled and copied in and out."""

import importlib
import pickle
from functools import partial

from bench.contenders._peers import PREFETCH, Collate, largest, missing
from bench.contenders._queues import QueueLoader
from bench.loads.pools import Workload

label = "faster-fifo"
available = partial(missing, "faster_fifo", "faster_fifo_reduction")

_WAIT_S = 120.0  # its own default, 10 s, is meant for small messages
_SLACK = 1.05  # batches of `text` differ in size, and pickles have headers


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> QueueLoader:
    """Make the loader; its queues are as long as the workload's largest batch asks for."""
    importlib.import_module("faster_fifo_reduction")  # lets a spawned worker get the queue
    pickle_bytes = largest(workload, Collate(workload, True), lambda batch: len(_dumps(batch)))
    ring_bytes = int(pickle_bytes * (PREFETCH + 1) * _SLACK) + 4096
    return QueueLoader(workload, workers, persistent, context, partial(_Fifo, ring_bytes))


class _Fifo:
    """Its queue with a longer wait and pickles of protocol 5."""

    def __init__(self, ring_bytes: int, context):
        queue = importlib.import_module("faster_fifo").Queue
        self._queue = queue(ring_bytes, PREFETCH, loads=pickle.loads, dumps=_dumps)

    def put(self, batch) -> None:
        self._queue.put(batch, timeout=_WAIT_S)

    def get(self):
        return self._queue.get(timeout=_WAIT_S)


def _dumps(batch) -> bytes:
    return pickle.dumps(batch, protocol=5)
