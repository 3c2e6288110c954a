"""A call as one process writes it and another reads it, and what comes back if it fails."""

import pickle
import traceback
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, _base
from concurrent.futures.process import _RemoteTraceback
from dataclasses import dataclass
from typing import Any

from torch._utils import ExceptionWrapper

from shmloader.core import PackedRecord
from shmloader.way_out import Failure

# What a worker gets: (None, function, arguments, named arguments), or of a map (its number, the
# pickled function, rows of arguments).
Content = tuple[Any, ...]

_OVER = _base.CANCELLED, _base.CANCELLED_AND_NOTIFIED, _base.FINISHED


class Call:
    """
    One request, and who is told of its answer.

    Attributes:
        future: Is told.
        content: What the worker gets.
        name: The function's, for messages.
        behind: How many others it may wait for in a worker: 1 of a map, whose calls are sent ahead
            of need; 0 of `submit`, whose calls may wait for each other.
    """

    __slots__ = ("behind", "content", "future", "name")

    def __init__(self, content: Content, function: Any, behind: int) -> None:
        self.future: Future[Any] = Future()
        self.content = content
        self.name = getattr(function, "__qualname__", None) or type(function).__name__
        self.behind = behind

    def is_over(self) -> bool:
        """Returns what `future.done()` does, without the lock that it takes each time."""
        return self.future._state in _OVER

    def begin(self) -> bool:
        """Returns False if it was cancelled, as it cannot be from now on."""
        future = self.future
        return future._state == _base.RUNNING or future.set_running_or_notify_cancel()


class Rest:
    """The calls of a map that are not made yet: a future each, for all, would take long."""

    def __init__(self, calls: Iterator[Call], ahead: deque[Call]) -> None:
        """Note where calls come from, and where the map finds them."""
        self._calls = calls
        self._ahead = ahead

    def draw(self, calls: deque[Call]) -> bool:
        """Append the next call. Returns False if there is none."""
        call = next(self._calls, None)
        if call is None:
            return False
        self._ahead.append(call)  # first: what an interrupt loses behind it, the map finds missing
        calls.append(call)
        return True


class Request(PackedRecord):
    """A call that is ready to be written into a slot, as often as a death makes it necessary."""

    def __init__(self, call: Call) -> None:
        """
        Encode what a worker gets.

        Raises:
            Exception: The error of pickling the function or an argument.
        """
        super().__init__(call.content)
        self.name = call.name


@dataclass
class RemoteError:
    """
    An error of a call, for the caller. Errors of the transport's own have a type and a message.

    Attributes:
        pickled: The error; empty if it cannot be pickled.
    """

    pickled: bytes
    exc_msg: str
    exc_type: type[BaseException] = RuntimeError

    @classmethod
    def of(cls, error: BaseException) -> "RemoteError":
        """Make it of what a call has raised."""
        text = "".join(traceback.format_exception(error))
        try:
            return cls(pickle.dumps(error), text)
        except Exception as reason:
            return cls(b"", f"{text}\n(the error itself cannot be pickled: {reason})")


def error_of(result: Any) -> BaseException:
    """Return the error of a call, by what its worker sent instead of a result."""
    if isinstance(result, Failure):
        return result.error
    if isinstance(result, ExceptionWrapper):
        try:
            result.reraise()
        except Exception as error:
            return error
    return _unpickled(result)


def _unpickled(remote: RemoteError) -> BaseException:
    text = f'\n"""\n{remote.exc_msg}"""'
    error: BaseException
    try:
        error = pickle.loads(remote.pickled) if remote.pickled else RuntimeError(text)
    except Exception as reason:
        error = RuntimeError(f"{text}\n(the error itself cannot be unpickled: {reason})")
    error.__cause__ = _RemoteTraceback(text)  # type: ignore[arg-type]  # it is a text
    return error
