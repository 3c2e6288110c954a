"""Loaders with torch's signature: how each is made, torch's own with a way to close it."""

from functools import partial
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader

from bench.loads.pools import Workload


class Closable:
    """Closes a loader that inherits torch's; workers stop as in torch's destructor."""

    _iterator: Any

    def close(self) -> None:
        """Stop the workers."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()


class TorchLoader(Closable, DataLoader):
    """torch's DataLoader with a `close()`."""


def make_like_torch(
    loader_class: type[DataLoader],
    workload: Workload,
    workers: int,
    persistent: bool,
    context: str,
    strategy: str | None = None,
) -> DataLoader:
    """Make a loader for a workload; strategy: how torch's transport shares tensors."""
    if strategy:
        use_strategy(strategy)
    return loader_class(
        workload.dataset(),
        batch_size=workload.batch_size,
        collate_fn=workload.collate_fn,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=context,
        worker_init_fn=partial(use_strategy, strategy) if strategy else None,
    )


def use_strategy(strategy: str, worker: int | None = None) -> None:
    """Set the sharing strategy of this process; `worker` is what torch passes and is not needed."""
    torch.multiprocessing.set_sharing_strategy(strategy)
