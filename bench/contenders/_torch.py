"""
torch's own DataLoader with a chosen sharing strategy and a way to close it.
"""

from functools import partial
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader

from bench.contenders._arguments import loader_arguments
from bench.workloads import Workload


class Closable:
    """
    A way to close a loader that inherits torch's: persistent workers stop as in its destructor.
    """

    _iterator: Any

    def close(self) -> None:
        """
        Stop the workers.
        """
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()


class TorchLoader(Closable, DataLoader):
    """
    torch's DataLoader with a `close()`.
    """


def make_torch_loader(
    strategy: str, workload: Workload, workers: int, persistent: bool, context: str
) -> TorchLoader:
    """
    Make a loader whose trainer and workers share tensors by `strategy`.
    """
    use_strategy(strategy)
    arguments = loader_arguments(workload, workers, persistent, context)
    return TorchLoader(**arguments, worker_init_fn=partial(use_strategy, strategy))


def use_strategy(strategy: str, worker: int | None = None) -> None:
    """
    Set the sharing strategy of this process; `worker` is what torch passes and is not needed.
    """
    torch.multiprocessing.set_sharing_strategy(strategy)
