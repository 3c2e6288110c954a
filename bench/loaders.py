"""Both loaders by the names that rows have for them."""

from contextlib import closing
from typing import Any

from bench.contenders.torches import TorchLoader
from shmloader import DataLoader

LOADERS = {"torch": TorchLoader, "ours": DataLoader}


def opened(loader: str, dataset: Any, *given: Any, **options: Any) -> closing:
    """Open one of them until the block ends."""
    return closing(LOADERS[loader](dataset, *given, **options))
