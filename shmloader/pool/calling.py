"""The pool's client in a worker: it calls what it is asked to, and answers with the result."""

import contextlib
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from shmloader.core import Past, PlacedRecord, Stopping
from shmloader.core.remedies import Remedies
from shmloader.memory.segment import Handle
from shmloader.processes import exits
from shmloader.processes.signals import Signals
from shmloader.processes.watching import ParentWatch
from shmloader.samples import random_state
from shmloader.transport.remote_error import RemoteError
from shmloader.worker import heap
from shmloader.worker.serve import LAST_WORDS, Client, Interrupts, Server

INITIALIZER_FAILED = 96  # the exit code of a worker
LEAVES = b"leaves"
_OF_RESULTS = Remedies(
    thing="result",
    smaller="return less from one call",
    fewer="lower slots, or return less from one call",
    short="return less from one call, lower slots or max_workers, set ring_bytes, or raise the "
    "memory limit",
)

_logger = logging.getLogger("concurrent.futures")


@dataclass
class CallingSpec:
    """What a worker is started with."""

    parent: ParentWatch  # the first, so that the caller is watched while the rest is unpickled
    handle: Handle
    signals: Signals
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    most_calls: int | None  # after which a worker leaves, to be replaced
    is_daemon: ClassVar[bool] = False  # a call may use processes


@exits.in_time()
def work(spec: CallingSpec, worker: int, past: Past | None, /) -> None:
    """Be a worker until the caller says quit, or is gone."""
    heap.leave_inherited()
    spec.parent.watch()
    # Of a call alone: a worker that waits for one is the caller's to end.
    interrupts = Interrupts(KeyboardInterrupt, are_wanted=False)
    torch.set_num_threads(1)
    random_state.seed_anew()
    spec.signals.follow(spec.parent.pid)
    spec.signals.leave()
    signal.pthread_sigmask(signal.SIG_SETMASK, spec.signals.mask)
    desk = spec.handle.sit_down(worker, _OF_RESULTS)
    _initialise(spec, interrupts)
    with contextlib.suppress(Stopping):  # it is told to leave while a result waits for room
        Server(desk, Calling(spec, interrupts)).serve(desk)


def _initialise(spec: CallingSpec, interrupts: Interrupts) -> None:
    if spec.initializer is None:
        return
    interrupts.are_wanted = True
    try:
        spec.initializer(*spec.initargs)
    except BaseException:
        try:
            _logger.critical("Exception in initializer:", exc_info=True)
        finally:
            sys.exit(INITIALIZER_FAILED)
    finally:
        interrupts.are_wanted = False


class Calling(Client):
    """
    Calls functions; there are no epochs, of which a worker would be told.

    Attributes:
        notes: Nothing is noted with an answer: no call depends on those before it.
        caught: No error of a call's own ends this process.
        answers: What messages call a result, and who gets it.
    """

    notes = False
    caught: type[BaseException] = BaseException
    answers = "result", "the caller"

    def __init__(self, spec: CallingSpec, interrupts: Interrupts) -> None:
        self._left = spec.most_calls
        self._interrupts = interrupts

    def answer(self, request: PlacedRecord) -> Any:
        """Call a function. Whatever it raises is the answer too."""
        if self._left is not None:
            self._left -= 1
        try:
            self._interrupts.are_wanted = True
            return self._call(*request.open())
        finally:
            self._interrupts.are_wanted = False

    def _call(self, function: Any, arguments: Any, named: Any) -> Any:
        if named is not None:
            return function(*arguments, **named)
        return [function(*row) for row in arguments]

    def wrap(self, error: BaseException) -> RemoteError:
        """Return what the caller makes the error of."""
        return RemoteError.of(error)

    def shorten(self, wrapper: RemoteError) -> RemoteError:
        """Keep the begin and the end of an error's text."""
        part = LAST_WORDS // 2
        text = f"{wrapper.text[:part]}\n...\n{wrapper.text[-part:]}"
        return RemoteError(b"", f"{text}\n(there was no room for the exception)")

    def leaves(self) -> bool:
        """Returns True if this process has answered as often as it may."""
        return self._left is not None and self._left <= 0

    def note(self, request: Any) -> bytes:
        """Say that it leaves: nothing else is ever noted."""
        return LEAVES

    def note_after(self, failure: Exception) -> bytes | None:
        """Say it again."""
        return LEAVES
