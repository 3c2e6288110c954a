"""torchdata's StatefulDataLoader: torch's transport, with a state taken at every batch."""

import importlib

from torch.utils.data import DataLoader

from bench.contenders._peers import missing
from bench.contenders._torch import Closable, make_like_torch
from bench.workloads import Workload

label = "torchdata"


def available() -> str | None:
    """Say why this contender cannot run here, or None."""
    return missing("torchdata.stateful_dataloader")


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> DataLoader:
    """Make the loader with its defaults and torch's default sharing strategy."""
    base = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    loader_class = type("ClosableLoader", (Closable, base), {})
    return make_like_torch(
        loader_class, workload, workers, persistent, context, strategy="file_descriptor"
    )
