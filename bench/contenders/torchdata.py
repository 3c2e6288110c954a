"""torchdata's StatefulDataLoader: torch's transport, with a state taken at every batch."""

import importlib
from functools import partial

from torch.utils.data import DataLoader

from bench.contenders._peers import missing
from bench.contenders._torch import Closable, make_like_torch
from bench.loads.pools import Workload

label = "torchdata"
available = partial(missing, "torchdata.stateful_dataloader")


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> DataLoader:
    """Make the loader with its defaults and torch's default sharing strategy."""
    base = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    loader_class = type("ClosableLoader", (Closable, base), {})
    return make_like_torch(
        loader_class, workload, workers, persistent, context, strategy="file_descriptor"
    )
