"""A call as one process writes it and another reads it, and what comes back if it fails."""

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, _base
from typing import Any

from shmloader.core import Kind, PackedRecord
from shmloader.errors import BatchTooLarge, attempt
from shmloader.memory.segment import Shape
from shmloader.transport import delivery
from shmloader.transport.delivery import Failure, PinningFailed

# What a worker gets: (function, arguments, named arguments), or of a map (function, rows of
# arguments, None).
Content = tuple[Any, Any, Any]

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

    def __init__(self, content: Content, name: str, behind: int) -> None:
        self.future: Future[Any] = Future()
        self.content = content
        self.name = name
        self.behind = behind

    def is_over(self) -> bool:
        """Returns what `future.done()` does, without the lock that it takes each time."""
        return self.future._state in _OVER

    def begin(self) -> bool:
        """Returns False if it was cancelled, as it cannot be from now on."""
        future = self.future
        return future._state == _base.RUNNING or future.set_running_or_notify_cancel()

    def tell(self, result: Any = None, error: BaseException | None = None) -> None:
        """End the future. What a callback raises beyond what futures catch is logged like that."""
        try:
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
        except BaseException:
            if threading.current_thread() is threading.main_thread():
                raise  # it may be of a handler of a signal
            _base.LOGGER.exception("exception calling callback for %r", self.future)

    def fail(self, error: BaseException) -> None:
        """End the future with an error, unless it was cancelled."""
        if self.begin():
            self.tell(error=error)


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

    def __init__(self, content: Content, name: str, shape: Shape) -> None:
        """
        Encode what a worker gets.

        Raises:
            BatchTooLarge: No slot of this shape can ever hold it.
            BaseException: The error of pickling the function or an argument.
        """
        super().__init__(content)
        self.name = name
        if self.length > shape.range_bytes:
            room = shape.bound and f" (because {shape.bound})"
            raise BatchTooLarge(
                f"a call of {name} takes {self.length / 1e6:.1f} MB, which does not fit "
                f"ring_bytes of {shape.range_bytes / 1e6:.1f} MB{room}: set "
                f"ring_bytes={self.length} or more, or pass less to one call"
            )


def error_in(kind: Any, content: Any) -> BaseException | None:
    """Return the error of a call, also of reading its result; None: the content is the result."""
    if isinstance(content, (Failure, PinningFailed)):
        return delivery.error_in(content)
    return content.open() if kind is Kind.ERROR else None


def name_of(function: Any) -> str:
    """Name a function for messages."""
    name, _ = attempt(lambda: function.__qualname__)  # of a user's class
    return name if type(name) is str else type(function).__name__
