"""
What can go wrong here and not in torch; each error is also the builtin that a caller would catch.

    ShmloaderError
    ├── BatchTooLarge        ValueError
    ├── EmptyBatch           RuntimeError
    ├── OutOfSharedMemory    MemoryError
    ├── PreloadFailed        ImportError
    ├── UnsendableBatch      TypeError
    └── WorkerBroken         RuntimeError
    UserWarning
    ├── LeftOutWarning
    ├── RestartWarning
    ├── RetentionWarning
    └── UnusedOptionWarning
"""

import contextlib
import errno
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch

# This package, and torch's loader.
_LIBRARIES = (
    os.path.join(os.path.dirname(__file__), ""),
    os.path.join(os.path.dirname(torch.__file__), "utils", "data", ""),
)
# The standard library, and frames of frozen modules such as runpy's.
_OF_PYTHON = (os.path.join(os.path.dirname(os.__file__), ""), "<frozen ")
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")
_CALL = compile("call()", "", "eval")
# They go down into a batch by calls: up to three frames a level, of which each would be a line.
_WALKS = frozenset(
    [f"shmloader/core/{part}.pyx" for part in ("gather", "encode", "decode")]
    + [os.path.join(os.path.dirname(__file__), "worker", "collate.py")]
)

# What a system call ends in that this process may not make: under a filter, or in a sandbox.
REFUSALS = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

T = TypeVar("T")


class ShmloaderError(Exception):
    """The base of all errors of shmloader's own."""


class BatchTooLarge(ShmloaderError, ValueError):
    """A batch needs more bytes than `ring_bytes` or a slot's range can ever hold."""


class EmptyBatch(ShmloaderError, RuntimeError):
    """
    All samples of a batch raised, and `tolerant()` left them out.

    `shmloader.DataLoader` goes on with the next batch; torch's loader raises it from `next()`,
    which may be called again.
    """


class OutOfSharedMemory(ShmloaderError, MemoryError):
    """The machine, the container or a limit has no room for the pages that a batch needs."""


class PreloadFailed(ShmloaderError, ImportError):
    """A module of `preload`, its `name`, cannot be imported where workers are forked from."""


class UnsendableBatch(ShmloaderError, TypeError):
    """
    A leaf of a batch cannot be pickled, or is nested too deep.

    The message names it, as in `batch['f'][1]`.
    """


class WorkerBroken(ShmloaderError, RuntimeError):
    """A worker wrote something into the segment that its protocol does not allow."""


class LeftOutWarning(UserWarning):
    """
    A sample raised, and `tolerant()` left it out of its batch; or an iterator ended behind one.

    Given in the process that fetches, once a second at most.
    """


class RestartWarning(UserWarning):
    """
    A worker died or hung and was replaced, because `restarts` is set.

    Names pid, signal and dataset indices. One says that the process that starts replacements died.
    """


class RetentionWarning(UserWarning):
    """
    Sixteen batches were copied out of their slots because too many slots are held.

    Given once per loader, before the next batch: if it is an error, that batch comes with the next
    `next()`.
    """


class UnusedOptionWarning(UserWarning):
    """
    An option does nothing because of what another one is, such as `restarts` with `num_workers=0`.

    Given when the loader is made.
    """


@contextlib.contextmanager
def if_allowed() -> Iterator[None]:
    """Go on without a system call that is refused, or that this kernel does not know."""
    try:
        yield
    except OSError as error:  # an error without a number is of a signal's handler
        if error.errno not in (*REFUSALS, errno.EINVAL):
            raise


@contextlib.contextmanager
def naming(call: str, advice: str = "") -> Iterator[None]:
    """
    Have the refusal of a system call say which call it was; the kernel's own text does not.

    Args:
        call: The name of the call.
        advice: What to do instead of allowing it, as in "or leave the option out".
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        raise OSError(
            error.errno,
            f"process {os.getpid()} may not make the system call {call} "
            f"({errno.errorcode[error.errno]}: {os.strerror(error.errno)}): allow it in the "
            f"sandbox or its seccomp profile{advice and ', '}{advice}",
        ) from error


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """
    Warn at the line of user code that led here, as `_users_frame` finds it.

    Args:
        message: The text, or a warning that was caught and is to be shown at that line.
        category: The class of the warning if the message is a text.
    """
    frame = _users_frame()
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        # As in warnings.warn() for code without a name, as in exec(): None would not be shown.
        module=frame.f_globals.get("__name__", "<string>"),
        registry=_registry_of(frame),
    )


def at_users_line(call: Callable[[], T], speaker: Any = None) -> T:
    """
    Call a function that warns at its caller's line, and let that be the line of user code.

    Catching its warnings instead would change the filters of all threads for a moment, and make
    Python forget what it has already shown.

    Args:
        call: Warns with `stacklevel=2`, as torch's loader does.
        speaker: Defined in the module for which the user may have set a filter; None: the user's.
    """
    frame = _users_frame()
    at = _CALL.replace(co_filename=frame.f_code.co_filename, co_firstlineno=frame.f_lineno)
    module = frame.f_globals.get("__name__", "<string>") if speaker is None else speaker.__module__
    names = {"__name__": module, "__warningregistry__": _registry_of(frame), "call": call}
    result: T = eval(at, names)
    return result


def leave_out_levels(error: BaseException) -> None:
    """Leave the walks over a batch out of an error's traceback; other code's frames stay."""
    entries = _entries(error.__traceback__)
    kept = [entry for entry in entries if entry.tb_frame.f_code.co_filename not in _WALKS]
    for entry, after in zip(kept, [*kept[1:], None], strict=True):
        entry.tb_next = after
    error.__traceback__ = kept[0] if kept else None


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _users_frame() -> FrameType:
    """
    Find the line of user code that led here, however many calls lie between.

    That is the innermost line outside of this package and of all that is installed: of a framework
    that trains, or of a progress bar. If all is installed, the innermost line outside of this
    package and of torch's loader; without one, the outermost line of all.
    """
    frame: FrameType = sys._getframe(2)
    nearest: FrameType | None = None
    while True:
        path = frame.f_code.co_filename
        if not path.startswith(_LIBRARIES):
            if not path.startswith(_OF_PYTHON) and not _INSTALLED.search(path):
                return frame
            nearest = nearest or frame
        if frame.f_back is None:
            return nearest or frame
        frame = frame.f_back


def _registry_of(frame: FrameType) -> dict[Any, Any]:
    """What Python has shown already at the lines of that frame's module."""
    registry: dict[Any, Any] = frame.f_globals.setdefault("__warningregistry__", {})
    return registry
