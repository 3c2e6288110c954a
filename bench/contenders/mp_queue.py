"""multiprocessing's own queue: every batch is pickled into a pipe and read out again."""

from bench.contenders._peers import PREFETCH
from bench.contenders._queues import QueueLoader
from bench.loads.pools import Workload

label = "mp queue"


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> QueueLoader:
    """Make the loader; batches travel as ndarrays, which pickle faster than tensors."""
    return QueueLoader(workload, workers, persistent, context, _make_queue)


def _make_queue(context):
    return context.Queue(PREFETCH)
