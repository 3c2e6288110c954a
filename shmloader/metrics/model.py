"""
How long a loop would wait with other options: its batches played again, event by event.

The rules are torch's. Batches are ordered in turn; each worker makes its own one after the other.
So many are ordered ahead, and each one that is returned orders one more. In order, a batch is
returned when it and all before it are there; otherwise in the order in which they are made, and no
worker is given more than its share. With dynamic assignment the next one is ordered of the worker
with the fewest orders that it has not answered.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

CYCLE, DYNAMIC = "cycle", "dynamic"


@dataclass(frozen=True)
class Played:
    """
    A loop that was played.

    Attributes:
        waits_s: Seconds of waiting before each batch.
        steps_s: Seconds of the step behind each.
        workers: Who made each batch, in the order of their requests.
    """

    waits_s: tuple[float, ...]
    steps_s: tuple[float, ...]
    workers: tuple[int, ...] = ()

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
    """
    The workers of a loop that is played, and what each was told.

    Args:
        paces: How many times as long as a batch's own time each takes for it.
        share: The most undelivered batches of one worker; None: any number.
        is_dynamic: Orders go to who has the fewest unanswered ones, not in turn.
    """

    def __init__(self, paces: Sequence[float], share: int | None, is_dynamic: bool) -> None:
        self._paces, self._share, self._is_dynamic = paces, share, is_dynamic
        self._free_at = [0.0] * len(paces)  # when each has made what it was told
        self._undelivered = [0] * len(paces)
        self._unanswered = [0] * len(paces)
        self._answers: list[tuple[float, int]] = []  # to come: when, and whose
        self._last = -1
        self.of_batch: list[int] = []  # who was told to make each

    def order(self, making_s: float, now: float) -> float:
        """Order the next batch; when it will be there."""
        worker = self._choose(now)
        self._last = worker
        self.of_batch.append(worker)
        self._free_at[worker] = max(self._free_at[worker], now) + making_s * self._paces[worker]
        if self._share is not None:
            self._undelivered[worker] += 1
        if self._is_dynamic:
            self._unanswered[worker] += 1
            heapq.heappush(self._answers, (self._free_at[worker], worker))
        return self._free_at[worker]

    def deliver(self, number: int) -> None:
        """A batch was returned."""
        self._undelivered[self.of_batch[number]] -= 1

    def _choose(self, now: float) -> int:
        if self._is_dynamic:
            while self._answers and self._answers[0][0] <= now:
                self._unanswered[heapq.heappop(self._answers)[1]] -= 1
            if self._share is None:
                return self._unanswered.index(min(self._unanswered))
            return min(filter(self._has_room, self._turns(0)), key=self._unanswered.__getitem__)
        if self._share is None:
            return (self._last + 1) % len(self._paces)
        return next(filter(self._has_room, self._turns(self._last + 1)))

    def _turns(self, first: int) -> list[int]:
        count = len(self._paces)
        return [(first + turn) % count for turn in range(count)]

    def _has_room(self, worker: int) -> bool:
        return self._share is None or self._undelivered[worker] < self._share


def play(
    making_s: Sequence[float],
    step_s: Sequence[float],
    workers: int,
    prefetch_factor: int,
    *,
    in_order: bool = True,
    assignment: str = CYCLE,
    batches: int | None = None,
    slots: int | None = None,
    paces: Sequence[float] | None = None,
) -> Played:
    """
    Play a loop.

    Args:
        making_s: Seconds that a worker takes for each batch; they come again from the start.
        step_s: Seconds that the trainer uses each batch; as above.
        workers: How many there are.
        prefetch_factor: Batches ordered ahead for each of them.
        assignment: Which worker is told to make the next one: "cycle" or "dynamic".
        batches: How many are played; default: as many as making_s has.
        slots: How many may be ordered, ready and in use together; default: enough.
        paces: How many times as long each worker takes; default: all as long.
    """
    count = batches or len(making_s)
    costs = list(islice(cycle(making_s), count))
    steps = list(islice(cycle(step_s), count))
    ahead = workers * prefetch_factor
    if slots is not None:
        ahead = max(1, min(ahead, slots - 1))  # one is in the user's hands
    share = None if in_order else prefetch_factor
    crew = _Workers(paces or [1.0] * workers, share, assignment == DYNAMIC)
    ready_at = [crew.order(cost, 0.0) for cost in costs[:ahead]]
    made = [(ready, number) for number, ready in enumerate(ready_at)]
    heapq.heapify(made)
    now, waits = 0.0, []
    for number in range(count):
        ready, returned = (ready_at[number], number) if in_order else heapq.heappop(made)
        waits.append(max(0.0, ready - now))
        now = max(now, ready)
        if not in_order:
            crew.deliver(returned)
        if number + ahead < count:
            ready_at.append(crew.order(costs[number + ahead], now))
            if not in_order:
                heapq.heappush(made, (ready_at[-1], number + ahead))
        now += steps[number]
    return Played(tuple(waits), tuple(steps), tuple(crew.of_batch))
