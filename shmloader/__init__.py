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
from shmloader.metrics import Held, Report, Stats
from shmloader.serving import close, install, report, stats, uninstall
from shmloader.worker.collate import empty

__version__ = version("shmloader")

__all__ = [
    "BatchTooLarge",
    "DataLoader",
    "Held",
    "OutOfSharedMemory",
    "Report",
    "RestartWarning",
    "RetentionWarning",
    "ShmloaderError",
    "Stats",
    "UnsendableBatch",
    "WorkerBroken",
    "close",
    "empty",
    "install",
    "report",
    "stats",
    "uninstall",
    "wrap",
]
