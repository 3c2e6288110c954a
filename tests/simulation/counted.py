"""Workers that square, whose answers also say how many they have given: an older note shows."""

from __future__ import annotations

from typing import Any

import numpy

from shmloader.memory.pool import SegmentPool
from tests.simulation.case import Case
from tests.transport.squares import SquareClient, Squarer, Squares, work


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
    def of(cls, case: Case, pool: SegmentPool) -> CountedSquares:
        """Start what a case asks for, in a segment of a pool."""
        return cls(
            workers=case.workers,
            slots=case.slots,
            restarts=case.restarts,
            leaves_after=case.leaves_after or None,
            ring_bytes=case.ring_kilobytes << 10,
            grows=case.grows,
            pool=pool,
        )
