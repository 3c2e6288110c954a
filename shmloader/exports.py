"""What the package exports. `import shmloader` runs this when the first of these names is used."""

from shmloader.data import SharedDict, SharedList, cached, downloaded, share
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
from shmloader.metrics import CacheStats, Epoch, Held, Report, Stats, Times, WorkerStats
from shmloader.serving import (
    close,
    install,
    load_state_dict,
    report,
    state_dict,
    stats,
    trace,
    uninstall,
)
from shmloader.trainer.resuming.merging import merge_states
from shmloader.tuning import Run, Tuned, tune
from shmloader.worker.collate import empty
from shmloader.worker.seeds import rng

__all__ = [
    "BatchTooLarge",
    "CacheStats",
    "DataLoader",
    "Epoch",
    "Held",
    "OutOfSharedMemory",
    "Report",
    "RestartWarning",
    "RetentionWarning",
    "Run",
    "SharedDict",
    "SharedList",
    "ShmloaderError",
    "Stats",
    "Times",
    "Tuned",
    "UnsendableBatch",
    "WorkerBroken",
    "WorkerStats",
    "cached",
    "close",
    "downloaded",
    "empty",
    "install",
    "load_state_dict",
    "merge_states",
    "report",
    "rng",
    "share",
    "state_dict",
    "stats",
    "trace",
    "tune",
    "uninstall",
    "wrap",
]
