"""The workers of a pool and the transport to them, opened and ended together."""

import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from shmloader.memory import policy, shortages
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import Segment, shape_of
from shmloader.pool import calling
from shmloader.pool.client import PoolClient
from shmloader.processes.watching import ParentWatch
from shmloader.transport.healing import describe_end
from shmloader.transport.transport import Transport
from shmloader.transport.waiting import Waiting
from shmloader.transport.workers import Workers

AHEAD = 2  # calls that a worker has at most


@dataclass
class Wanted:
    """What is wanted of the workers; the names are `Pool`'s."""

    max_workers: int
    context: Any
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    max_tasks_per_child: int | None
    slots: int | None
    ring_bytes: int | None
    restarts: int
    preload: tuple[str, ...] | None = None

    def check(self) -> None:
        """
        Look at what was given.

        Raises:
            ValueError, TypeError: Something is out of range or of a wrong type.
        """
        if isinstance(self.max_workers, int) and self.max_workers < 1:
            raise ValueError(f"max_workers must be greater than 0, and is {self.max_workers}")
        for name, least in (
            ("max_workers", 1),
            ("restarts", 0),
            ("max_tasks_per_child", 1),
            ("slots", self.max_workers),
            ("ring_bytes", 1),
        ):
            value = getattr(self, name)
            if value is None and name != "restarts":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
            if value < least:
                raise ValueError(f"{name}={value}: must be at least {least}")
        if self.initializer is not None and not callable(self.initializer):
            raise TypeError("initializer must be a callable")


class Crew:
    """The workers, once they are started."""

    def __init__(self, wanted: Wanted, segments: SegmentPool) -> None:
        """Start them."""
        workers, most_calls = wanted.max_workers, wanted.max_tasks_per_child
        self._segments = segments
        self._active = [True] * workers
        with shortages.explained():
            # As many again for results of a map that came before their turn.
            shape = shape_of(workers, 2 * AHEAD, wanted.slots, None, wanted.ring_bytes)
            segment = segments.acquire(shape)
            self.transport = Transport(
                segment,
                policy.reserved_slots(AHEAD * workers, workers, shape.slots),
                segments,
                heals=wanted.restarts > 0 or most_calls is not None,
                grows=wanted.slots is None,
            )
            self.processes = Workers(0)
            self._waiting = Waiting(self.transport, self.processes)
            client = PoolClient(_spec_of(wanted, segment), wanted.preload)
            self.processes.start(wanted.context, client, self.transport, wanted.restarts)
        self.transport.notes.begin_epoch(0, None, 0, 0)  # for viewers: a pool has no epochs

    def freest(self) -> tuple[int, int]:
        """Return the worker with the fewest calls, and how many it has."""
        loads = self.transport.requests.loads()
        least = min(loads)
        return loads.index(least), least

    def take(self, timeout_s: float, receive: Callable[[], Any], expected: Collection[int]) -> Any:
        """
        Take the next answer; None if it only takes longer.

        Raises:
            RuntimeError: There will be none, because workers have died.
        """
        try:
            return self._waiting.take(timeout_s, receive, expected, self._active)
        except Exception as error:
            dead = self.processes.dead(self._active)
            if dead and self.processes.healer is None:
                raise RuntimeError(self._say_dead(dead[0])) from error
            if not self._waiting.may_come_yet(error, self._active, lambda worker: None):
                raise
        return None

    def _say_dead(self, worker: int) -> str:
        process = self.processes.by_id[worker]
        who = f"pool worker {worker} (pid {process.pid})"
        if process.exitcode == calling.INITIALIZER_FAILED:
            return f"the initializer failed in {who}: see the log"
        return f"{who} {describe_end(process)}: restarts=n replaces workers that die"

    def end(self, *, waits: bool) -> None:
        """End them, at once or when they have done what they do, and give the segment back."""
        self.transport.ledger.stop()
        if waits:
            self.processes.leave()
        were_reaped = self.processes.end()
        self.transport.close()
        give_back = self._segments.release if were_reaped else self._segments.discard
        give_back(self.transport.segment)


def _spec_of(wanted: Wanted, segment: Segment) -> calling.CallingSpec:
    return calling.CallingSpec(
        ParentWatch(os.getpid()),
        segment.handle(),
        {*signal.pthread_sigmask(signal.SIG_BLOCK, ())},
        wanted.initializer,
        wanted.initargs,
        wanted.max_tasks_per_child,
    )
