"""
The error that ends a publisher, on its way to the subscribers.

An error's own code runs when it is described, pickled and unpickled, and may raise anything: then
subscribers are told of the error in words.
"""

import _thread
import functools
import pickle
from collections.abc import Callable
from typing import Any

from shmloader.errors import is_own, text_of


def pickled(error: BaseException) -> bytes:
    """Pickle an error, with words in its place for those who cannot read it."""
    words = f"{type(error).__name__}: {text_of(error)}"
    return pickle.dumps((words, _tried(functools.partial(pickle.dumps, error))))


def failure_of(text: bytes, publisher: str) -> Exception:
    """Make the error that a subscriber raises; publisher: as it is named there."""
    words, pickled_error = pickle.loads(text)
    error = _tried(functools.partial(pickle.loads, pickled_error or b""))
    if issubclass(type(error), Exception):
        return error  # type: ignore[no-any-return]
    return RuntimeError(f"{publisher} has ended: {words}")


def _tried(call: Callable[[], Any]) -> Any:
    """Return what an object's code makes; None if it raises, but Ctrl-C comes again, and later."""
    try:
        return call()
    except BaseException as error:
        if type(error) is KeyboardInterrupt and not is_own(error, call):
            _thread.interrupt_main()
        return None
