"""
The logger "shmloader": rare events of the trainer, told at DEBUG, and never anything for a batch.

What makes the first batch late is told at WARNING, once for each start; so is a warning that would
be an error where there is no call that it belongs to. What a handler raises is printed.

It is quiet unless the program turns it on. Workers tell nothing. Only code that the user called
tells at once. A finalizer may run inside any line, such as one of a handler that holds a lock which
is not reentrant; so its lines are kept, and told before the next one.
"""

import contextlib
import logging
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator

_KEPT_MAX = 64  # lines of finalizers, of which the oldest go; without a listener nothing reads them

_logger = logging.getLogger("shmloader")
_logger.addHandler(logging.NullHandler())
# (time.monotonic(), message, arguments)
_kept: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=_KEPT_MAX)
if hasattr(os, "register_at_fork"):  # a system without has no forked children
    os.register_at_fork(after_in_child=_kept.clear)  # the parent tells its own lines


class _Thread(threading.local):
    keeps = False


_this = _Thread()


def is_heard() -> bool:
    """Returns True if the line would be heard: to be asked where its arguments cost something."""
    return _this.keeps or _logger.isEnabledFor(logging.DEBUG)


def tell(message: str, *arguments: object) -> None:
    """
    Tell one event, or keep it if this thread runs a finalizer.

    The message is as for `logging.debug()`, and starts with the loader's name.
    """
    if _this.keeps:
        _kept.append((time.monotonic(), message, arguments))
        return
    if not is_heard():
        _kept.clear()
        return
    with contextlib.suppress(IndexError):  # there is no more, or another thread took it meanwhile
        while True:
            since, earlier, values = _kept.popleft()
            _say(logging.DEBUG, earlier + " (%.1f s ago)", *values, time.monotonic() - since)
    _say(logging.DEBUG, message, *arguments)


def warn(message: str, *arguments: object) -> None:
    """Tell, at WARNING, what a user may wait for; arguments as for `tell`."""
    if not _this.keeps:
        _say(logging.WARNING, message, *arguments)


def _say(level: int, message: str, *arguments: object) -> None:
    try:
        _logger.log(level, message, *arguments, stacklevel=3)
    except Exception:  # of a handler or a filter: no batch's or call's
        traceback.print_exc()


def is_in_finalizer() -> bool:
    """Returns True on a thread that is `in_finalizer`."""
    return bool(_this.keeps)


@contextlib.contextmanager
def in_finalizer() -> Iterator[None]:
    """Keep what this thread tells: no logger, lock or handler is touched."""
    before = _this.keeps
    _this.keeps = True
    try:
        yield
    finally:
        _this.keeps = before
