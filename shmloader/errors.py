"""What can go wrong here and not in torch; each error is the builtin that a caller would catch."""

import contextlib
import errno
import functools
import opcode
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType, TracebackType
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
_SHOWN = "__warningregistry__"  # where a module has what Python has shown already at its lines
# They go down into a batch by calls: up to three frames a level, of which each would be a line.
_WALKS = frozenset(
    [f"shmloader/core/{part}.pyx" for part in ("gather", "encode", "decode")]
    + [os.path.join(os.path.dirname(__file__), "worker", "collate.py")]
)

# What a system call ends in that this process may not make: under a filter, or in a sandbox.
REFUSALS = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

_TRACEBACK: Any = BaseException.__traceback__
_RAISE = bytes([opcode.opmap["RAISE_VARARGS"]])

T = TypeVar("T")


class ShmloaderError(Exception):
    """The base of all errors of shmloader's own."""


class BatchTooLarge(ShmloaderError, ValueError):
    """A batch needs more bytes than `ring_bytes` or a slot's range can ever hold."""


class EmptyBatch(ShmloaderError, RuntimeError):
    """
    All samples of a batch raised, and `tolerant()` skipped them.

    `shmloader.DataLoader` continues with the next batch; torch's loader raises it from `next()`,
    which may be called again.
    """


class OutOfSharedMemory(ShmloaderError, MemoryError):
    """The machine, the container or a limit has no room for the pages that a batch needs."""


class PreloadFailed(ShmloaderError, ImportError):
    """A module of `preload`, its `name`, cannot be imported where workers are forked from."""


class UnsendableBatch(ShmloaderError, TypeError):
    """
    A value in a batch cannot be pickled, or is nested too deep.

    The message names the value, as in `batch['f'][1]`.
    """


class WorkerBroken(ShmloaderError, RuntimeError):
    """A worker wrote something into the segment that its protocol does not allow."""


class LeftOutWarning(UserWarning):
    """
    A sample raised, and `tolerant()` skipped it; or an iterator ended after such a sample.

    Given in the process that fetches, once a second at most.
    """


class RestartWarning(UserWarning):
    """
    A worker died or hung and was replaced, because `restarts` is set.

    Names pid, signal and dataset indices; also given if the process that starts replacements died.
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

    The advice is what to do instead of allowing it, as in "or leave the option out".
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


def is_own(error: BaseException, again: Callable[[], object]) -> bool:
    """
    Returns True if an error is that of users' objects whose code has run, and no interrupt.

    What is no Exception may be either. If its traceback does not tell, that code alone is run
    again: an interrupt comes once.
    """
    if issubclass(type(error), Exception):
        return True
    if _is_of_a_handler(error):
        return False
    try:
        again()
    except BaseException as second:
        return type(second) is type(error)
    return False


def _is_of_a_handler(error: BaseException) -> bool:
    """Returns True if Ctrl-C, or a function that handles a signal, has surely raised an error."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [getattr(handler, "__func__", handler) for handler in handlers]
    codes = {getattr(function, "__code__", None) for function in functions}
    entry: TracebackType | None = None
    for entry in entries_of(error):
        if entry.tb_frame.f_code in codes:
            return True
    if type(error) is not KeyboardInterrupt or entry is None:
        return False
    # Ctrl-C comes between two instructions, an error of Python code by one that raises it.
    at = entry.tb_lasti
    return entry.tb_frame.f_code.co_code[at : at + 1] != _RAISE


def attempt(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return what code of users' objects makes, or its own error; an interrupt is raised."""
    try:
        return call(), None
    except BaseException as error:
        if not is_own(error, call):
            raise
        return None, error


def asked(value: T, ask: Callable[[T], str], otherwise: str) -> str:
    """Return what a user's object says of itself; something else if its code raises."""
    text, _ = attempt(functools.partial(ask, value))
    return otherwise if text is None else text


def shown(value: object) -> str:
    """Return an object's repr(); its class if that raises."""
    return asked(value, repr, f"<{type(value).__name__}>")


def text_of(error: BaseException) -> str:
    """Return an error's text; the name of its class if that raises."""
    return asked(error, str, type(error).__name__)


def said(error: BaseException) -> str:
    """Return an error's class and text on one line; the name of its class if that raises."""
    return asked(error, _line_of, type(error).__name__)


def _line_of(error: BaseException) -> str:
    return " ".join("".join(traceback.format_exception_only(error)).split())


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, unless its class refuses."""
    attempt(functools.partial(BaseException.add_note, error, note))


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of user code that led here, or show a warning that was caught there."""
    frame = _users_frame()
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        # As in warnings.warn() for code without a name, as in exec(): None would not be shown.
        module=frame.f_globals.get("__name__", "<string>"),
        registry=frame.f_globals.setdefault(_SHOWN, {}),
    )


_warned: set[str] = set()  # what this process was warned of once


def warn_once(text: str) -> None:
    """Warn likewise, unless this process was warned of the same before."""
    if text not in _warned:
        _warned.add(text)
        warn(text)


def is_within(owner: object, methods: Collection[CodeType]) -> bool:
    """Returns True if the caller was called, in the end, by one of an object's methods."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in methods and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def at_users_line(call: Callable[[], T], speaker: Any = None) -> T:
    """
    Call a function that warns at its caller's line, and let that be the line of user code.

    It warns with `stacklevel=2`, as torch's loader does, in the name of the speaker's module, for
    which there may be a filter, or of the user's. Catching its warnings instead would change the
    filters of all threads for a moment, and make Python forget what it has already shown.
    """
    frame = _users_frame()
    at = _CALL.replace(co_filename=frame.f_code.co_filename, co_firstlineno=frame.f_lineno)
    module = frame.f_globals.get("__name__", "<string>") if speaker is None else speaker.__module__
    names = {"__name__": module, _SHOWN: frame.f_globals.setdefault(_SHOWN, {}), "call": call}
    result: T = eval(at, names)
    return result


def leave_out_levels(error: BaseException) -> None:
    """Leave the walks over a batch out of an error's traceback; other code's frames stay."""
    # By Python's own accessors: a user's class may refuse, as a frozen dataclass does.
    kept = [entry for entry in entries_of(error) if entry.tb_frame.f_code.co_filename not in _WALKS]
    for entry, after in zip(kept, [*kept, None][1:], strict=True):
        entry.tb_next = after
    BaseException.with_traceback(error, kept[0] if kept else None)


def entries_of(error: BaseException) -> Iterator[TracebackType]:
    """Yield the entries of an error's traceback, whatever its class says of that."""
    trace: TracebackType | None = _TRACEBACK.__get__(error)
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
