"""The pool's client in a worker: it calls what it is asked to, and answers with the result."""

import contextlib
import logging
import pickle
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy
import torch

from shmloader.core import Past, PlacedRecord, Stopping
from shmloader.memory.segment import Handle
from shmloader.pool.call import RemoteError
from shmloader.processes.watching import ParentWatch
from shmloader.worker import heap
from shmloader.worker.serve import Failed, Server

INITIALIZER_FAILED = 96  # the exit code of a worker
_FUNCTIONS_KEPT = 8  # of maps that run at the same time
LEAVES = b"leaves"

_logger = logging.getLogger("concurrent.futures")


@dataclass
class CallingSpec:
    """What a worker is started with."""

    parent: ParentWatch  # the first, so that the caller is watched while the rest is unpickled
    handle: Handle
    signal_mask: set[int]
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    most_calls: int | None  # after which a worker leaves, to be replaced


class _Interrupts:
    """Ctrl-C interrupts a call, and no worker that waits for one: that is the caller's to end."""

    def __init__(self) -> None:
        self.calls = False
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.calls:
            raise KeyboardInterrupt


def work(spec: CallingSpec, worker: int, past: Past | None, /) -> None:
    """Be a worker until the caller says quit, or is gone."""
    heap.leave_inherited()
    spec.parent.watch()
    interrupts = _Interrupts()
    torch.set_num_threads(1)
    _seed()
    signal.pthread_sigmask(signal.SIG_SETMASK, spec.signal_mask)
    desk = spec.handle.sit_down(worker)
    if spec.parent.failure is not None:
        raise spec.parent.failure
    _initialise(spec, interrupts)
    with contextlib.suppress(Stopping):  # it is told to leave while a result waits for room
        Server(desk, Calling(spec, interrupts)).serve(desk, lambda: spec.parent.has_ended)


def _seed() -> None:
    """Seed the generators from the system: a fork has those of the process it was forked from."""
    source = random.SystemRandom()
    random.seed(source.getrandbits(128))
    numpy.random.seed(source.getrandbits(32))
    torch.default_generator.manual_seed(source.getrandbits(63))


def _initialise(spec: CallingSpec, interrupts: _Interrupts) -> None:
    if spec.initializer is None:
        return
    interrupts.calls = True
    try:
        spec.initializer(*spec.initargs)
    except BaseException:
        _logger.critical("Exception in initializer:", exc_info=True)
        sys.exit(INITIALIZER_FAILED)
    finally:
        interrupts.calls = False


class Calling:
    """
    Calls functions.

    Attributes:
        where: The process in words, for tracebacks.
        notes: Nothing is noted with an answer: no call depends on those before it.
    """

    where = "in a worker of a pool"
    notes = False

    def __init__(self, spec: CallingSpec, interrupts: _Interrupts) -> None:
        self._left = spec.most_calls
        self._interrupts = interrupts
        self._functions: dict[int, Any] = {}  # by the number of their map

    def answer(self, request: PlacedRecord) -> Any:
        """Call a function. Whatever it raises is the answer too."""
        if self._left is not None:
            self._left -= 1
        try:
            self._interrupts.calls = True
            return self._call(*request.open())
        except Stopping:
            raise
        except BaseException as error:
            failure = RemoteError.of(error)
        finally:
            self._interrupts.calls = False
        raise Failed(failure)

    def _call(self, number: int | None, function: Any, arguments: Any, named: Any = None) -> Any:
        if number is None:
            return function(*arguments, **named)
        if number not in self._functions:
            if len(self._functions) >= _FUNCTIONS_KEPT:
                del self._functions[next(iter(self._functions))]
            self._functions[number] = pickle.loads(function)
        function = self._functions[number]
        return [function(*row) for row in arguments]

    def told(self, word: int | None) -> None:
        """Nothing is told."""

    def leaves(self) -> bool:
        """Returns True if this process has answered as often as it may."""
        return self._left is not None and self._left <= 0

    def note(self, request: Any) -> bytes:
        """Say that it leaves: nothing else is ever noted."""
        return LEAVES

    def note_after(self, failure: Exception) -> bytes | None:
        """Say it again."""
        return LEAVES
