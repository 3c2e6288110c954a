"""
How long a loop would wait with other options: its batches played again, event by event.

The rules are torch's. Batches are ordered in turn; each worker makes its own one after the other.
So many are ordered ahead, and each one that is returned orders one more. In order, a batch is
returned when it and all before it are there; otherwise in the order in which they are made, and no
worker is given more than its share. With dynamic assignment the next one is ordered of the worker
with the fewest orders that it has not answered.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from shmloader.stats.setting import CYCLE, DYNAMIC


@dataclass(frozen=True)
class Played:
    """A loop that was played."""

    waits_s: tuple[float, ...]  # before each batch
    steps_s: tuple[float, ...]  # after each
    workers: tuple[int, ...]  # which worker made each batch, in the order of the requests

    def after(self, count: int) -> "Played":
        """Leave out the first batches."""
        return Played(self.waits_s[count:], self.steps_s[count:], self.workers[count:])

    @property
    def total_s(self) -> float:
        """Seconds from the first call of next() to the end of the last step."""
        return sum(self.waits_s) + sum(self.steps_s)

    @property
    def wait_share(self) -> float:
        """The part of the time that the loop waited, from 0 to 1."""
        return sum(self.waits_s) / self.total_s if self.total_s > 0 else 0.0


class _Workers:
    """The workers of a loop that is played, with paces as in `play`."""

    def __init__(self, paces: Sequence[float], share: int, is_dynamic: bool) -> None:
        """Let each have a share of undelivered batches at most; is_dynamic: not in turn."""
        self._paces, self._share, self._is_dynamic = paces, share, is_dynamic
        self._free_at = [0.0] * len(paces)  # when each has made what it was told
        self.undelivered, self._unanswered = [0] * len(paces), [0] * len(paces)
        self._answers: list[tuple[float, int]] = []  # to come: when, and whose
        self._last = -1

    def order(self, making_s: float, now: float) -> tuple[float, int]:
        """Order a batch; when it will be there, and who makes it."""
        self._last = worker = self._with_fewest(now) if self._is_dynamic else self._in_turn()
        self._free_at[worker] = max(self._free_at[worker], now) + making_s * self._paces[worker]
        self.undelivered[worker] += 1
        if self._is_dynamic:
            self._unanswered[worker] += 1
            heapq.heappush(self._answers, (self._free_at[worker], worker))
        return self._free_at[worker], worker

    def _in_turn(self) -> int:
        worker = (self._last + 1) % len(self._paces)
        while self.undelivered[worker] >= self._share:
            worker = (worker + 1) % len(self._paces)
        return worker

    def _with_fewest(self, now: float) -> int:
        while self._answers and self._answers[0][0] <= now:
            self._unanswered[heapq.heappop(self._answers)[1]] -= 1
        pairs = zip(self._unanswered, self.undelivered, strict=True)
        orders = [count if told < self._share else math.inf for count, told in pairs]
        return orders.index(min(orders))


def play(
    making_s: Sequence[float],  # that a worker takes for each batch
    step_s: Sequence[float],  # that the trainer uses each
    workers: int,
    prefetch_factor: int,
    *,
    in_order: bool = True,
    assignment: str = CYCLE,
    batches: int | None = None,  # how many are played; None: as many as making_s has
    slots: int | None = None,  # for what is ordered, ready and in use together; None: enough
    paces: Sequence[float] | None = None,  # how many times as long each worker takes; None: once
) -> Played:
    """Play a loop, whose times of batches and steps come again from the start."""
    count = batches or len(making_s)
    costs, steps = (tuple(islice(cycle(each), count)) for each in (making_s, step_s))
    ahead = workers * prefetch_factor
    if slots is not None:
        ahead = max(1, min(ahead, slots - 1))  # one is in the user's hands
    share = count if in_order else prefetch_factor
    crew = _Workers(paces or [1.0] * workers, share, assignment == DYNAMIC)
    now = 0.0
    waits: list[float] = []
    of_batch: list[int] = []  # who makes each
    made: list[tuple[float, int, float]] = []  # the least one is returned next
    for number in range(count + ahead):
        if number >= ahead:
            _, returned, ready = heapq.heappop(made)
            waits.append(max(0.0, ready - now))
            now = max(now, ready)
            crew.undelivered[of_batch[returned]] -= 1
        if number < count:
            ready, worker = crew.order(costs[number], now)
            of_batch.append(worker)
            heapq.heappush(made, (number if in_order else ready, number, ready))
        if number >= ahead:
            now += steps[number - ahead]
    return Played(tuple(waits), steps, tuple(of_batch))
