"""Grain with the workload's collate function, whose arrays `mp_prefetch` copies to its memory."""

from bench.contenders import _grain
from bench.contenders._peers import Collate, Stream
from bench.loads.pools import Workload

label = "Grain, collate"
available = _grain.available


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> Stream:
    """Make the loader; `context` is more than it can do."""
    collate = Collate(workload, to_arrays=True)
    return _grain.stream_of(
        workload,
        workers,
        persistent,
        lambda samples: samples.batch(workload.batch_size, batch_fn=collate),
    )
