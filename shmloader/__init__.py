"""A drop-in for torch.utils.data.DataLoader whose batches lie in shared memory from the start."""

from importlib.metadata import version

from shmloader.collate import empty
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

__version__ = version("shmloader")

__all__ = [
    "BatchTooLarge",
    "DataLoader",
    "OutOfSharedMemory",
    "RestartWarning",
    "RetentionWarning",
    "ShmloaderError",
    "UnsendableBatch",
    "WorkerBroken",
    "empty",
    "wrap",
]
