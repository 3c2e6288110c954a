"""A drop-in for torch.utils.data.DataLoader whose batches lie in shared memory from the start."""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shmloader import requirements

requirements.check()

if TYPE_CHECKING:
    from shmloader.exports import *
else:
    # torch takes seconds to import, and the command line can help and refuse without it. So names
    # and modules of the package are imported when they are first used.
    def __getattr__(name):
        if name in __all__:
            exports = import_module("shmloader.exports")
            globals().update({each: getattr(exports, each) for each in __all__})
            return globals()[name]
        # Names with an underscore are what pickle, doctest and inspect ask any module for.
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = version("shmloader")

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
