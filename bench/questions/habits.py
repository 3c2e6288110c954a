"""
Habits of keeping batches: what a training loop holds while the loader goes on.

A habit takes an iterator of batches and `keep`, which it calls for each batch that it keeps or
keeps something of, and returns what is kept when the epoch is over.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from bench.batches import leaves

_WINDOW = 5

Keep = Callable[[object], object]


def keep_all(batches: Iterator, keep: Keep) -> list:
    return [keep(batch) for batch in batches]


def keep_every_third(batches: Iterator, keep: Keep) -> list:
    return [keep(batch) for turn, batch in enumerate(batches) if turn % 3 == 0]


def keep_first(batches: Iterator, keep: Keep) -> list:
    return [keep(batch) for turn, batch in enumerate(batches) if turn == 0]


def keep_samples(batches: Iterator, keep: Keep) -> list:
    """Keep the first sample of each batch; its leaves are views, which hold the whole batch."""
    return [_first_sample(keep(batch)) for batch in batches]


def keep_labels(batches: Iterator, keep: Keep) -> list:
    """Keep the last leaf of each batch, which is small beside the others."""
    return [keep(leaves(batch)[-1]) for batch in batches]


def keep_outputs(batches: Iterator, keep: Keep) -> list:
    """Keep the labels of each batch, and what stands for a model's outputs: memory of its own."""
    return [[_outputs(batch), keep(leaves(batch)[-1])] for batch in batches]


def keep_window(batches: Iterator, keep: Keep) -> list:
    return list(deque(map(keep, batches), maxlen=_WINDOW))


def look_ahead(batches: Iterator, keep: Keep) -> list:
    """Draw two batches before the first is used, as prefetching wrappers do."""
    batches = map(keep, batches)
    waiting, last = deque(islice(batches, 2)), None
    while waiting:
        waiting.extend(islice(batches, 1))
        last = waiting.popleft()
    return [last]


HABITS = {
    habit.__name__: habit
    for habit in (
        keep_all,
        keep_every_third,
        keep_first,
        keep_samples,
        keep_labels,
        keep_outputs,
        keep_window,
        look_ahead,
    )
}


def _outputs(batch):
    first = leaves(batch)[0]
    return first.reshape(len(first), -1)[:, :10] + 1


def _first_sample(batch):
    if isinstance(batch, dict):
        return {key: leaf[:1] for key, leaf in batch.items()}
    if isinstance(batch[0], np.ndarray):  # a list of records, which were never put together
        return batch[:1]
    return [leaf[:1] for leaf in batch]
