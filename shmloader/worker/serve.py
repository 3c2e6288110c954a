"""
Orders in, answers out: a worker's side of the transport.

It knows no dataset: what a request means, and what is to be noted with an answer, is a client's.
No frame and no name keeps a batch alive at `commit`, so an alias that is alive then is the user's.
"""

import contextlib
import os
import signal
import sys
from multiprocessing import util
from types import FrameType
from typing import Any, Protocol

from shmloader.core import Desk, Order, Stopping, generation, unsendable
from shmloader.errors import ShmloaderError, UnsendableBatch, leave_out_levels, text_of

_PLACE = Order.PLACE  # found faster than an attribute of the enum's class
_LOOK_AGAIN_S = 5.0
LAST_WORDS = 3000  # characters
_AS_THEY_ARE = ShmloaderError, MemoryError, OSError  # errors that say all

# What a client answers in place of a batch: it has reached its end; the request was skipped.
END, NOTHING = object(), object()


class Failed(Exception):
    """A client's answer is an error that was wrapped before."""

    def __init__(self, wrapper: Any) -> None:
        super().__init__()
        self.wrapper = wrapper


class Untold(Exception):
    """Where a worker is after its answer cannot be said; the note says that, and it stays."""

    def __init__(self, note: bytes) -> None:
        super().__init__()
        self.note = note


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, and not an error that an object of a batch raises."""


class Interrupts:
    """Ctrl-C in a worker, which its trainer gets too: an error, but only where it is wanted."""

    def __init__(self, error: type[KeyboardInterrupt], are_wanted: bool) -> None:
        """Have it raise an error, one that has this worker leave at most once."""
        self.are_wanted = are_wanted
        self._error = error
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.are_wanted:
            self.are_wanted = self._error is not Interrupted
            raise self._error


# No error of a user's object: this process is to leave.
LEAVING = Stopping, Interrupted


class Client(Protocol):
    """Who answers the requests that a worker gets."""

    notes: bool  # one goes with each answer, from which another worker could go on
    # What is an answer too, if `answer` raises it; it is one as it is if an answer's own objects
    # raise it while they are pickled. What else these raise names the object.
    caught: type[BaseException]
    answers: tuple[str, str]  # what messages call an answer, and who gets it

    def answer(self, request: Any) -> Any:
        """Return a batch, END or NOTHING; what it raises is the answer too, if it is `caught`."""

    def wrap(self, error: BaseException) -> Any:
        """Return what stands for an error in an answer's place; the error is being handled."""

    def shorten(self, wrapper: Any) -> Any:
        """Return what fits into a page and can be pickled, for what `wrap` has made."""

    def resumes(self) -> None:
        """Do what has to be done before iter() returns, at the order RESUME."""
        return

    def told(self, word: int | None) -> None:
        """Do what that order is for."""
        return

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
        self._generation = generation()

    def serve(self, orders: Orders) -> None:
        """Answer all requests in the order they were sent in, until told to quit."""
        desk = self._desk
        while True:
            order = orders.take(_LOOK_AGAIN_S)
            if desk.stopping:
                return
            if order is None:
                continue
            verb, value = order
            if verb is _PLACE:
                if self._answer(value):
                    return
            elif verb is Order.RESUME:
                self._client.resumes()
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
        # No name of ours refers to the batch any more, so an alias that is alive now is the user's.
        desk.commit()
        return leaves

    # Each call returns before the next step, so that no frame keeps the batch alive at commit.

    def _try_to_write(self, request: Any) -> Any:
        self._is_batch = True
        try:
            batch = self._ask(request)
        except Failed as failed:
            return failed.wrapper
        except Stopping:
            raise
        except self._client.caught as error:
            leave_out_levels(error)
            return self._client.wrap(error)
        if batch is END or batch is NOTHING:
            self._is_batch = False
            self._desk.write_empty(is_end=batch is END)
            return None
        return self._write(batch)

    def _ask(self, request: Any) -> Any:
        try:
            return self._client.answer(request)
        finally:
            if generation() != self._generation:
                _end_child(sys.exc_info()[1])

    def _write(self, batch: Any) -> Any:
        try:
            self._desk.write(batch, False)
        except LEAVING:
            raise
        except BaseException as error:  # of the batch's own objects
            return self._wrap_write_error(batch, error)
        return None

    def _wrap_write_error(self, batch: Any, error: BaseException) -> Any:
        leave_out_levels(error)
        try:
            if isinstance(error, _AS_THEY_ARE) or self._is_of_caller(error):
                raise error
            # Of endless recursion only the message: its frames are many pages.
            cause = None if isinstance(error, RecursionError) else error
            raise _explain(batch, error, *self._client.answers) from cause
        except self._client.caught as explained:
            return self._client.wrap(explained)
        finally:
            # The error's traceback holds this frame, and the frame would hold the batch.
            del batch, error

    def _is_of_caller(self, error: BaseException) -> bool:
        """Returns True if an error is no Exception and the client's caller expects it as it is."""
        return not isinstance(error, Exception) and isinstance(error, self._client.caught)

    def _write_error(self, wrapper: Any) -> None:
        try:
            self._desk.write(wrapper, True)
        except LEAVING:
            raise
        except BaseException:
            # A class that cannot be sent by name, such as one made in a function, or no room for
            # the text: keep what fits into the page that held the request.
            self._desk.write(self._client.shorten(wrapper), True)

    def _write_note(self, request: Any) -> bool:
        """Write what another worker would go on from. Returns False if there is no such thing."""
        is_place = True
        try:
            try:
                note = self._client.note(request)
            except Untold as untold:
                note, is_place = untold.note, False
            self._desk.write_snapshot(note)
        except Exception as error:
            # A worker that only wants to leave can do so after an answer that leaves it room.
            if self._client.notes or not isinstance(error, ShmloaderError):
                self._write_note_after(error)
            return False
        return is_place

    def _write_note_after(self, error: Exception) -> None:
        """Answer with an error, such as a state that is too large, and go on without it."""
        failure = self._client.wrap(error)
        if self._is_batch:
            # The trainer must learn of the end: an error must not replace it.
            self._write_error(failure)
        # Without a note, or room for it, this worker cannot be replaced until its next one.
        with contextlib.suppress(ShmloaderError):
            note = self._client.note_after(error)
            if note is not None:
                self._desk.write_snapshot(note)


def _end_child(error: BaseException | None) -> None:
    """End a child that a request's code forked, and that came back from it: it is no worker."""
    code: Any = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = error.code or 0
        elif error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        util._flush_std_streams()  # type: ignore[attr-defined]
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _explain(batch: Any, error: BaseException, name: str, receiver: str) -> UnsendableBatch:
    """Make an error that names the leaf that could not be written."""
    why = f"cannot be sent to {receiver}: {text_of(error)}"
    found = unsendable.find_unsendable(batch, name)
    if found is None and isinstance(error, RecursionError):
        found = unsendable.find_deepest(batch, name)  # an object and its state are two levels
    if found is None:
        return UnsendableBatch(f"the {name} {why}")
    path, leaf = found
    return UnsendableBatch(
        f"{path} ({type(leaf).__name__}) {why}. Return tensors, arrays, numbers, strings or "
        "picklable objects"
    )
