"""
torchdata's StatefulDataLoader: torch's transport, with a state taken at every batch.
"""

import importlib
from functools import partial

from bench.contenders._arguments import loader_arguments
from bench.contenders._peers import missing
from bench.contenders._torch import Closable, use_strategy
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
    arguments = loader_arguments(workload, workers, persistent, context)
    strategy = partial(use_strategy, "file_descriptor")
    return _loader_class()(**arguments, worker_init_fn=strategy)


def _loader_class() -> type:
    base = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    return type("ClosableLoader", (Closable, base), {})
