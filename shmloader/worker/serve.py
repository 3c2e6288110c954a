"""
Orders in, answers out: a worker's side of the transport.

It knows no dataset: what a request means, and what is to be noted with an answer, is a client's.
No frame and no name keeps a batch alive at `commit`, so an alias that is alive then is the user's.
"""

import contextlib
import gc
from collections.abc import Callable
from typing import Any, Protocol

from torch._utils import ExceptionWrapper

from shmloader.core import Desk, Order, unsendable
from shmloader.errors import ShmloaderError, UnsendableBatch, leave_out_levels

_PLACE = Order.PLACE  # found faster than an attribute of the enum's class
_LOOK_AGAIN_S = 5.0
_LAST_WORDS = 3000  # characters

# What a client answers in place of a batch: it has reached its end; the request was skipped.
END, NOTHING = object(), object()


class Failed(Exception):
    """A client's answer is an error that was wrapped before."""

    def __init__(self, wrapper: Any) -> None:
        super().__init__()
        self.wrapper = wrapper


class Client(Protocol):
    """
    Who answers the requests that a worker gets.

    Attributes:
        where: The process in words, for tracebacks.
        notes: A note goes with each answer, from which another worker could go on.
    """

    where: str
    notes: bool

    def answer(self, request: Any) -> Any:
        """Return a batch, END or NOTHING; what it raises is the answer too."""

    def told(self, word: int | None) -> None:
        """Do what the order RESUME is for."""

    def leaves(self) -> bool:
        """Returns True if this process should leave after the answer that was just made."""

    def note(self, request: Any) -> bytes:
        """Say where this worker is after its answer; what it raises takes the answer's place."""

    def note_after(self, failure: Exception) -> bytes | None:
        """Say it again after such an error; None: it cannot be said."""


class Orders(Protocol):
    """Where orders come from: the desk, or what looks ahead there."""

    def take(self, timeout_s: float) -> Any:
        """Return the next (order, value); None: there was none in time."""


class Server:
    """Answers all requests of one worker."""

    def __init__(self, desk: Desk, client: Client) -> None:
        self._desk = desk
        self._client = client
        self._is_batch = False  # the answer is one, or an error in its place

    def serve(self, orders: Orders, is_abandoned: Callable[[], bool]) -> None:
        """Answer all requests in the order they were sent in, until told to quit, or abandoned."""
        desk = self._desk
        while True:
            order = orders.take(_LOOK_AGAIN_S)
            if desk.stopping:
                return
            if order is None:
                if is_abandoned():
                    return
                continue
            verb, value = order
            if verb is _PLACE:
                if self._answer(value):
                    return
            elif verb is Order.RESUME:
                # Acknowledge before the client does it, as torch does.
                desk.resumed()
                self._client.told(value)
            else:
                return
            del order, value

    def _answer(self, request: Any) -> bool:
        """Answer a request. Returns True if this worker leaves after it."""
        desk, client = self._desk, self._client
        failure = self._try_to_write(request)
        if failure is not None:
            # By now no name refers to the batch, so its bytes are free for the error's text.
            self._write_error(failure)
        leaves = client.leaves()
        if client.notes or leaves:
            leaves = self._write_note(request) and leaves
        if desk.is_cyclic:
            gc.collect(1)  # it refers to itself still; the old generation takes long
        # No name of ours refers to the batch any more, so an alias that is alive now is the user's.
        desk.commit()
        return leaves

    # Each call returns before the next step, so that no frame keeps the batch alive at commit.

    def _try_to_write(self, request: Any) -> ExceptionWrapper | None:
        self._is_batch = True
        try:
            batch = self._client.answer(request)
        except Failed as failed:
            wrapper: ExceptionWrapper = failed.wrapper
            return wrapper
        except Exception as error:
            leave_out_levels(error)
            return ExceptionWrapper(where=self._client.where)
        if batch is END or batch is NOTHING:
            self._is_batch = False
            self._desk.write_end() if batch is END else self._desk.write_nothing()
            return None
        return self._write(batch)

    def _write(self, batch: Any) -> ExceptionWrapper | None:
        try:
            self._desk.write(batch, False)
        except Exception as error:
            return self._wrap_write_error(batch, error)
        return None

    def _wrap_write_error(self, batch: Any, error: Exception) -> ExceptionWrapper:
        leave_out_levels(error)
        try:
            if isinstance(error, (ShmloaderError, MemoryError, OSError)):
                raise error
            # Of endless recursion only the message: its frames are many pages.
            cause = None if isinstance(error, RecursionError) else error
            raise _explain(batch, error) from cause
        except Exception:
            return ExceptionWrapper(where=self._client.where)
        finally:
            # The error's traceback holds this frame, and the frame would hold the batch.
            del batch, error

    def _write_error(self, wrapper: ExceptionWrapper) -> None:
        try:
            self._desk.write(wrapper, True)
        except Exception:
            # A class that cannot be sent by name, such as one made in a function, or no room for
            # the text: keep what fits into the page that held the request.
            wrapper.exc_type = RuntimeError
            wrapper.exc_msg = wrapper.exc_msg[-_LAST_WORDS:]
            self._desk.write(wrapper, True)

    def _write_note(self, request: Any) -> bool:
        """Write what another worker would go on from. Returns False if there is no such thing."""
        try:
            self._desk.write_snapshot(self._client.note(request))
        except Exception as error:
            # A worker that only wants to leave can do so after an answer that leaves it room.
            if self._client.notes or not isinstance(error, ShmloaderError):
                self._write_note_after(error)
            return False
        return True

    def _write_note_after(self, error: Exception) -> None:
        """Answer with an error, such as a state that cannot be pickled, and go on without it."""
        failure = ExceptionWrapper((type(error), error, error.__traceback__), self._client.where)
        if self._is_batch:
            # The trainer must learn of the end: an error must not replace it.
            self._write_error(failure)
        # Without a note, or room for it, this worker cannot be replaced until its next one.
        with contextlib.suppress(ShmloaderError):
            note = self._client.note_after(error)
            if note is not None:
                self._desk.write_snapshot(note)


def _explain(batch: Any, error: Exception) -> UnsendableBatch:
    """Make an error that names the leaf that could not be written."""
    found = unsendable.find_unsendable(batch)
    if found is None and isinstance(error, RecursionError):
        found = unsendable.find_deepest(batch)  # an object and its state are two levels
    if found is None:
        return UnsendableBatch(f"the batch cannot be sent to the trainer: {error}")
    path, leaf = found
    return UnsendableBatch(
        f"{path} ({type(leaf).__name__}) cannot be sent to the trainer: {error}. Return tensors, "
        "arrays, numbers, strings or picklable objects"
    )
