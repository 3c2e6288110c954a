"""shmloader's DataLoader with its defaults: nothing is tuned for a workload."""

import importlib

from torch.utils.data import DataLoader

from bench.contenders._torch import make_like_torch
from bench.loads.pools import Workload

label = "shmloader"


def available() -> str | None:
    """Say why this contender cannot run here, or None."""
    try:
        loader_class()
    except (ImportError, AttributeError) as error:
        return f"shmloader is not built: {error}"
    return None


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> DataLoader:
    """Make the loader; it has its own `close()`."""
    return make_like_torch(loader_class(), workload, workers, persistent, context)


def loader_class() -> type[DataLoader]:
    """Import shmloader only when it is asked for, so that a process may choose which."""
    return importlib.import_module("shmloader").DataLoader
