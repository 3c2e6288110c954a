"""Grain with its own batching, which stacks straight into the shared memory of `mp_prefetch`."""

from bench.contenders import _grain
from bench.contenders._peers import Stream, as_arrays
from bench.loads.pools import Workload

label = "Grain"
available = _grain.available


def refuses(workload: Workload) -> str | None:
    """Its own batching stacks, and no more."""
    return "it has its own collate function: see grain_collate" if workload.collate_fn else None


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> Stream:
    """Make the loader; `context` is more than it can do."""
    return _grain.stream_of(
        workload,
        workers,
        persistent,
        lambda samples: samples.map(as_arrays).batch(workload.batch_size),
    )
