"""Both loaders by the names that rows have for them, each with a `close()`."""

from bench.contenders._torch import TorchLoader
from shmloader import DataLoader

LOADERS = {"torch": TorchLoader, "ours": DataLoader}
