"""Workers that square, whose answers also say how many they have given: an older note shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from shmloader.core import Delivered, HandsOut, InHand, Kind
from shmloader.memory.segment_pool import SegmentPool
from tests.simulation.case import Case
from tests.simulation.squares import SquareClient, Squarer, Squares, work


class Counting(Squarer):
    """
    Adds to each square the number of its answer, or 0 if the request does not want that.

    What a dead worker had answered must be known to its replacement, no more and no less.
    """

    def answer(self, request: Any) -> Any:
        start, length, is_counted = request
        squares = super().answer((start, length))
        return squares + self.answered * is_counted


def expected(request: tuple[int, int, int], factor: int, count: int) -> numpy.ndarray:
    """What must be answered to a request, by a worker that was told the factor last."""
    start, length, is_counted = request
    return numpy.arange(start, start + length) ** 2 * factor + count * is_counted


def work_counting(spec: Any, worker: int, progress: Any = None) -> None:
    """Be a worker."""
    work(spec, worker, progress, Counting)


class CountingClient(SquareClient):
    """What the transport asks."""

    succeed = staticmethod(work_counting)


class CountedSquares(Squares):
    """Such workers, over a transport of their own."""

    client_of = CountingClient

    @classmethod
    def of(cls, case: Case, pool: SegmentPool, **more: Any) -> CountedSquares:
        """Start what a case asks for, in a segment of a pool."""
        return cls(
            workers=case.places,
            begin=case.workers if case.seats else None,
            slots=case.slots,
            restarts=case.restarts,
            leaves_after=case.leaves_after or None,
            ring_bytes=case.ring_kilobytes << 10,
            grows=case.grows,
            pool=pool,
            **more,
        )


class Counted(HandsOut):
    """
    The answers of such workers as an iterator of them and their batches, which count as a loader's.

    Attributes:
        delivered: What a state would hold: by numbers, in the order of `draw`.
    """

    _generation = _turn = None
    _num_yielded = 0

    def __init__(self, workers: int, squares: CountedSquares, take: Callable[[], Any]) -> None:
        """Hand out what a call takes, once it is there."""
        self.delivered = Delivered(workers, True)
        self._squares, self._take = squares, take
        self._tasks: dict[Any, int] = {}

    def draw(self, key: Any, request: Any) -> None:
        """Note that something is asked for."""
        task = self._tasks[key] = len(self._tasks)
        self.delivered.draw(task, list(request))

    def _make(self) -> InHand:
        answer = self._take()
        if not isinstance(answer.kind, Kind):
            return InHand((answer, None))
        received = self._squares.transport.received
        batch = self._squares.delivery.deliver(answer)
        hand = self.delivered.take(self._tasks[answer.key], answer.worker)
        hand.batch, hand.holder, hand.key = (answer, batch), received.by_key, answer.key
        return hand

    def has(self) -> set[Any]:
        """The keys of what a state would hold."""
        missing = set(self.delivered.missing())
        return {
            key
            for key, task in self._tasks.items()
            if task < self.delivered.high and task not in missing
        }
