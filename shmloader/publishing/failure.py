"""
The error that ends a publisher, on its way to the subscribers.

An error's own code runs when it is described, pickled and unpickled, and may raise anything: then
subscribers are told of the error in words.
"""

import _thread
import functools
import pickle
from collections.abc import Callable

from shmloader.errors import is_own, text_of


def pickled(error: BaseException) -> bytes:
    """Pickle an error, with words in its place for those who cannot read it."""
    words = f"{type(error).__name__}: {text_of(error)}"
    return pickle.dumps((words, _pickle_of(error)))


def failure_of(text: bytes, publisher: str) -> Exception:
    """Make the error that a subscriber raises; publisher: as it is named there."""
    words, pickle_of_error = pickle.loads(text)
    return _error_in(pickle_of_error) or RuntimeError(f"{publisher} has ended: {words}")


def _pickle_of(error: BaseException) -> bytes:
    """Pickle an error that can be read again; otherwise nothing."""
    write = functools.partial(pickle.dumps, error)
    try:
        text = write()
    except BaseException as other:
        _interrupt_later(other, write)
        return b""
    return text if _error_in(text) is not None else b""


def _error_in(text: bytes) -> Exception | None:
    read = functools.partial(pickle.loads, text)
    try:
        error = read()
    except BaseException as other:
        _interrupt_later(other, read)
        return None
    return error if issubclass(type(error), Exception) else None


def _interrupt_later(error: BaseException, again: Callable[[], object]) -> None:
    """Raise Ctrl-C again, in the main thread and later: it is no error of the object's."""
    if type(error) is KeyboardInterrupt and not is_own(error, again):
        _thread.interrupt_main()
