"""
What can go wrong here and not in torch; each error is also the builtin that a caller would catch.

    ShmloaderError
    ├── BatchTooLarge        ValueError
    ├── OutOfSharedMemory    MemoryError
    ├── UnsendableBatch      TypeError
    └── WorkerBroken         RuntimeError
    UserWarning
    ├── RestartWarning
    └── RetentionWarning
"""

import os
import sys
import warnings
from types import FrameType

import torch.utils.data

_LIBRARIES = tuple(
    os.path.join(os.path.dirname(path), "") for path in (__file__, torch.utils.data.__file__)
)


class ShmloaderError(Exception):
    """The base of all errors of shmloader's own."""


class BatchTooLarge(ShmloaderError, ValueError):
    """A batch needs more bytes than `ring_bytes` or a slot's range can ever hold."""


class OutOfSharedMemory(ShmloaderError, MemoryError):
    """The machine, the container or a limit has no room for the pages that a batch needs."""


class UnsendableBatch(ShmloaderError, TypeError):
    """A leaf of a batch cannot be pickled; the message names it, as in `batch['f'][1]`."""


class WorkerBroken(ShmloaderError, RuntimeError):
    """A worker wrote something into the segment that its protocol does not allow."""


class RestartWarning(UserWarning):
    """
    A worker died or hung and was replaced, because `restarts` is set.

    Names pid, signal and dataset indices.
    """


class RetentionWarning(UserWarning):
    """
    Sixteen batches were copied out of their slots because too many slots are held.

    Given once per loader, before the next batch: if it is an error, that batch comes with the next
    `next()`.
    """


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """
    Warn at the line of user code that led here.

    That is the innermost line outside of this package and of torch's loader, however many calls lie
    between; without one, the outermost line of all.

    Args:
        message: The text, or a warning that was caught and is to be shown at that line.
        category: The class of the warning if the message is a text.
    """
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        # As in warnings.warn() for code without a name, as in exec(): None would not be shown.
        module=frame.f_globals.get("__name__", "<string>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
