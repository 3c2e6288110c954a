"""
A loop whose loader costs nothing and does not know beforehand which samples are slow.

Its rules: `ahead` batches are asked for before the first is used, and one more with each batch that
is delivered. Requests are begun in their order, each by the first worker that is free, so none is
idle while a request waits. Handing over costs nothing. No loader can count on more; by luck,
another order of slow batches can be some percent faster.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace


def best_waits(
    making_s: Sequence[float], steps_s: Sequence[float], workers: int, ahead: int, in_order: bool
) -> list[float]:
    """
    Play the loop.

    Args:
        making_s: Seconds that any worker takes for each batch.
        steps_s: Seconds between each delivery and the next call of next().
        ahead: Batches that may be asked for and not delivered.
        in_order: Deliver in the order of the requests, otherwise in that in which they are made.

    Returns:
        Seconds that each call of next() waits.
    """
    free_s = [0.0] * workers  # when each worker is free, the first one first

    def made_at(batch: int, asked_s: float) -> float:
        """Let the first free worker make a batch; times of asking only rise."""
        done_s = max(free_s[0], asked_s) + making_s[batch]
        heapreplace(free_s, done_s)
        return done_s

    coming = [(batch if in_order else 0, made_at(batch, 0.0)) for batch in range(ahead)]
    heapify(coming)  # the next to be delivered first: by number, or by time
    now_s, waits_s = 0.0, []
    for batch, step_s in enumerate(steps_s, start=ahead):
        _, there_s = heappop(coming)
        waits_s.append(max(0.0, there_s - now_s))
        now_s += waits_s[-1]
        if batch < len(making_s):
            heappush(coming, (batch if in_order else 0, made_at(batch, now_s)))
        now_s += step_s
    return waits_s
