"""A drop-in for torch.utils.data.DataLoader whose batches lie in shared memory from the start."""

from importlib.metadata import version

from shmloader import requirements

requirements.check()

from shmloader.dataloader import DataLoader, wrap
from shmloader.errors import (
    BatchTooLarge,
    OutOfSharedMemory,
    RestartWarning,
    RetentionWarning,
    ShmloaderError,
    UnsendableBatch,
    WorkerBroken,
)
from shmloader.metrics import Held, Stats
from shmloader.serving import close, install, stats, trace, uninstall
from shmloader.worker.collate import empty

__version__ = version("shmloader")

__all__ = [
    "BatchTooLarge",
    "DataLoader",
    "Held",
    "OutOfSharedMemory",
    "RestartWarning",
    "RetentionWarning",
    "ShmloaderError",
    "Stats",
    "UnsendableBatch",
    "WorkerBroken",
    "close",
    "empty",
    "install",
    "stats",
    "trace",
    "uninstall",
    "wrap",
]
