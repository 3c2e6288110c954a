"""The workers of a pool and the transport to them, opened and ended together."""

import math
import os
import time
from collections.abc import Callable, Collection
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from shmloader.memory import policy, shortages
from shmloader.memory.segment import Segment, Shape, shape_of
from shmloader.memory.segment_pool import SegmentPool
from shmloader.pinning.host_delivery import PinnedDelivery, PlainDelivery
from shmloader.pinning.pinned_slots import can_pin
from shmloader.pool import calling
from shmloader.pool.client import PoolClient
from shmloader.processes import foreign_threads
from shmloader.processes.signals import Signals
from shmloader.processes.starting import method_of
from shmloader.processes.watching import ParentWatch
from shmloader.setup.arguments import check_count, check_flag
from shmloader.transport.client import warn_aside
from shmloader.transport.delivery import Delivery
from shmloader.transport.healing import describe_end
from shmloader.transport.transport import Transport
from shmloader.transport.waiting import Waiting
from shmloader.transport.workers import Workers

AHEAD = 2  # calls that a worker has at most
RESTARTS_S = 3600.0  # for which restarts are counted
LOOK_S = 60.0  # from one look for deaths to the next


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
    pin_memory: bool = False
    preload: tuple[str, ...] | None = None

    def check(self) -> None:
        """Refuse what is out of range or of a wrong type."""
        if isinstance(self.max_workers, int) and self.max_workers < 1:
            raise ValueError(f"max_workers must be greater than 0, and is {self.max_workers}")
        self.max_workers = check_count("max_workers", self.max_workers)
        self.restarts = check_count("restarts", self.restarts, 0)
        least = {"max_tasks_per_child": 1, "slots": self.max_workers, "ring_bytes": 1}
        for name in least:
            if (value := getattr(self, name)) is not None:
                setattr(self, name, check_count(name, value, least[name]))
        if self.initializer is not None and not callable(self.initializer):
            raise TypeError("initializer must be a callable")
        self.pin_memory = check_flag("pin_memory", self.pin_memory)


class Crew:
    """The workers, once they are started."""

    def __init__(self, wanted: Wanted, segments: SegmentPool) -> None:
        """Start them."""
        workers, most_calls = wanted.max_workers, wanted.max_tasks_per_child
        self._segments = segments
        self._active = [True] * workers
        self._restarts, self._since_s = 0, math.inf  # that were seen; since when they are counted
        self._look_s = 0.0  # when to look for others
        self._before = -1.0  # the last call that was sent before the last death
        with shortages.explained():
            pins = wanted.pin_memory and can_pin()
            segment = segments.acquire(_shape_of(wanted, pins))
            self.transport = Transport(
                segment,
                policy.reserved_slots(AHEAD * workers, workers, segment.shape.slots),
                segments,
                heals=wanted.restarts > 0 or most_calls is not None,
                grows=wanted.slots is None,
            )
            self.delivery = _delivery_of(self.transport, segments, pins)
            self.processes = Workers(0)
            self._waiting = Waiting(self.transport, self.processes, self.delivery)
            self._start(wanted, PoolClient(_spec_of(wanted, segment), wanted.preload))
        self.transport.notes.begin_epoch(0, None, 0, 0)  # for viewers: a pool has no epochs

    def _start(self, wanted: Wanted, client: PoolClient) -> None:
        if method_of(wanted.context) == "fork" and (news := foreign_threads.news()):
            warn_aside(news)
        try:
            self.processes.start(wanted.context, client, self.transport, wanted.restarts)
        except BaseException:
            self.processes.end()  # the caller never gets this object, to end them
            raise

    def freest(self) -> tuple[int, int]:
        """Return the worker with the fewest calls, and how many it has."""
        loads = self.transport.requests.loads()
        least = min(loads)
        return loads.index(least), least

    def take(self, timeout_s: float, receive: Callable[[], Any], expected: Collection[int]) -> Any:
        """
        Take the next answer; None if it only takes longer.

        Raises:
            BrokenProcessPool: There will be none, because workers have died.
        """
        if self.processes.healer is not None:
            self._renew(expected)
        try:
            return self._waiting.take(timeout_s, receive, expected, self._active)
        except Exception as error:
            dead = self.processes.dead(self._active)
            if dead and self.processes.healer is None:
                raise BrokenProcessPool(self._say_dead(dead)) from error
            try:
                may_come_yet = self._waiting.may_come_yet(error, self._active, lambda worker: None)
            except RuntimeError as gone:
                raise BrokenProcessPool(str(gone)) from error
            if not may_come_yet:
                raise
        return None

    def _renew(self, expected: Collection[int]) -> None:
        """Have all restarts again after an hour, but not for a call that may have caused deaths."""
        now = time.monotonic()
        if now < self._look_s:
            return
        self._look_s = now + LOOK_S
        restarts = self.transport.ledger.sums()["restarts"]
        if restarts != self._restarts:
            self._restarts, self._since_s = restarts, min(self._since_s, now)
            self._before = max(expected, default=-1)
        elif now - self._since_s >= RESTARTS_S and min(expected, default=math.inf) > self._before:
            self._since_s = math.inf
            self.processes.begin_epoch()

    def _say_dead(self, dead: Collection[int]) -> str:
        ends = []
        for worker in dead:
            process = self.processes.by_id[worker]
            who = f"pool worker {worker} (pid {process.pid})"
            if process.exitcode == calling.INITIALIZER_FAILED:
                return f"the initializer failed in {who}: see the log"
            ends.append(f"{who} {describe_end(process)}")
        return f"{', '.join(ends)}: restarts=n replaces workers that die"

    def end(self, *, waits: bool) -> None:
        """End them, at once or when they have done what they do, and give the segment back."""
        self.transport.ledger.stop()
        try:
            if waits:
                # However long: each waits for the threads and the processes of its calls.
                self.processes.leave(None)
        finally:
            were_reaped = self.processes.end()
            self.transport.close()
            give_back = self._segments.release if were_reaped else self._segments.discard
            give_back(self.transport.segment)


def _shape_of(wanted: Wanted, pins: bool) -> Shape:
    # As many again for results of a map that came before their turn.
    # One for each worker at least: calls may wait for each other.
    asked = wanted.max_workers, 2 * AHEAD, wanted.slots, None, wanted.ring_bytes
    fenced = policy.FENCED_AHEAD_SLOTS if pins else 0
    remedy = "lower slots or max_workers, or "
    return shape_of(*asked, fenced, fewest=wanted.max_workers, remedy=remedy)


def _delivery_of(transport: Transport, segments: SegmentPool, pins: bool) -> Delivery:
    if not pins:
        return PlainDelivery(transport.received)
    delivery = PinnedDelivery(transport, segments)
    delivery.warn = warn_aside  # an error would end the pool
    return delivery


def _spec_of(wanted: Wanted, segment: Segment) -> calling.CallingSpec:
    return calling.CallingSpec(
        ParentWatch(os.getpid()),
        segment.handle(),
        Signals.of_now(),
        wanted.initializer,
        wanted.initargs,
        wanted.max_tasks_per_child,
    )
