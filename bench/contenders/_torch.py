"""
torch's own DataLoader with a chosen sharing strategy and a way to close it.
"""

from functools import partial

import torch.multiprocessing
from torch.utils.data import DataLoader

from bench.workloads import Workload


class TorchLoader(DataLoader):
    """
    torch's DataLoader; `close()` stops persistent workers as torch's own destructor does.
    """

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()


def make_torch_loader(
    strategy: str, workload: Workload, workers: int, persistent: bool, context: str
) -> TorchLoader:
    """
    Make a loader whose trainer and workers share tensors by `strategy`.
    """
    use_strategy(strategy)
    return TorchLoader(
        workload.dataset(),
        batch_size=workload.batch_size,
        collate_fn=workload.collate_fn,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=context,
        worker_init_fn=partial(use_strategy, strategy),
    )


def use_strategy(strategy: str, worker: int | None = None) -> None:
    """
    Set the sharing strategy of this process; `worker` is what torch passes and is not needed.
    """
    torch.multiprocessing.set_sharing_strategy(strategy)
