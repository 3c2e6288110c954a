"""
torchdata's StatefulDataLoader: torch's transport, with a state taken at every batch.
"""

import importlib
from functools import partial

from bench.contenders._peers import missing
from bench.contenders._torch import use_strategy
from bench.workloads import Workload

label = "torchdata"


def available() -> str | None:
    """
    Say why this contender cannot run here, or None.
    """
    return missing("torchdata.stateful_dataloader")


def make_loader(workload: Workload, workers: int, persistent: bool, context: str):
    """
    Make the loader with its defaults and torch's default sharing strategy.
    """
    use_strategy("file_descriptor")
    return _loader_class()(
        workload.dataset(),
        batch_size=workload.batch_size,
        collate_fn=workload.collate_fn,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=context,
        worker_init_fn=partial(use_strategy, "file_descriptor"),
    )


def _loader_class() -> type:
    base = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader

    class ClosableLoader(base):
        def close(self) -> None:
            iterator, self._iterator = self._iterator, None
            if iterator is not None:
                iterator._shutdown_workers()

    return ClosableLoader
