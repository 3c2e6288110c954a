"""
How long a loop would wait with other options: its batches played again, event by event.

The rules are torch's. Batches are ordered in turn; each worker makes its own one after the other.
So many are ordered ahead, and each one that is returned orders one more. In order, a batch is
returned when it and all before it are there; otherwise in the order in which they are made.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice


@dataclass(frozen=True)
class Played:
    """
    A loop that was played.

    Attributes:
        waits_s: Seconds of waiting before each batch.
        steps_s: Seconds of the step behind each.
    """

    waits_s: tuple[float, ...]
    steps_s: tuple[float, ...]

    def after(self, count: int) -> "Played":
        """Leave out the first batches."""
        return Played(self.waits_s[count:], self.steps_s[count:])

    @property
    def total_s(self) -> float:
        """Seconds from the first call of next() to the end of the last step."""
        return sum(self.waits_s) + sum(self.steps_s)

    @property
    def wait_share(self) -> float:
        """The part of the time that the loop waited, from 0 to 1."""
        return sum(self.waits_s) / self.total_s if self.total_s > 0 else 0.0


def play(
    making_s: Sequence[float],
    step_s: Sequence[float],
    workers: int,
    prefetch_factor: int,
    *,
    in_order: bool = True,
    batches: int | None = None,
    slots: int | None = None,
) -> Played:
    """
    Play a loop.

    Args:
        making_s: Seconds that a worker takes for each batch; they come again from the start.
        step_s: Seconds that the trainer uses each batch; as above.
        workers: How many there are.
        prefetch_factor: Batches ordered ahead for each of them.
        batches: How many are played; default: as many as making_s has.
        slots: How many may be ordered, ready and in use together; default: enough.
    """
    count = batches or len(making_s)
    costs = list(islice(cycle(making_s), count))
    steps = list(islice(cycle(step_s), count))
    ahead = workers * prefetch_factor
    if slots is not None:
        ahead = max(1, min(ahead, slots - 1))  # one is in the user's hands
    free_at = [0.0] * workers  # when each worker has made what it was told
    ready_at: list[float] = []  # by batch

    def order(number: int, now: float) -> None:
        worker = number % workers
        free_at[worker] = max(free_at[worker], now) + costs[number]
        ready_at.append(free_at[worker])

    for number in range(min(ahead, count)):
        order(number, 0.0)
    made = [(ready, number) for number, ready in enumerate(ready_at)]
    heapq.heapify(made)
    now, waits = 0.0, []
    for number in range(count):
        ready = ready_at[number] if in_order else heapq.heappop(made)[0]
        waits.append(max(0.0, ready - now))
        now = max(now, ready)
        if number + ahead < count:
            order(number + ahead, now)
            if not in_order:
                heapq.heappush(made, (ready_at[-1], number + ahead))
        now += steps[number]
    return Played(tuple(waits), tuple(steps))
