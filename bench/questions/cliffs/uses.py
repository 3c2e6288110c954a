"""
What the rows do with their loaders: an epoch of each.

A use takes one iterable, or as many as the row has loaders, and returns what is kept at the end of
the epoch.
"""

import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np

from bench.batches import leaves

_CHILDREN = 8
_STEP_S = 0.005  # long enough for the queue behind it to fill

Use = Callable[..., object]


def stream(*loaders: Iterable) -> None:
    """Take every batch and drop it; several loaders one after the other, as train and val are."""
    for loader in loaders:
        for _ in loader:
            pass


def habit(name: str) -> Use:
    """Keep batches as one of the habits does, to the end of the epoch."""
    return lambda loader: HABITS[name](iter(loader))


def keep_first(batches: Iterator) -> object:
    first = next(batches)
    for _ in batches:
        pass
    return first


def keep_samples(batches: Iterator) -> list:
    """Keep the first sample of each batch; its leaves are views, which hold the whole batch."""
    return [_first_sample(batch) for batch in batches]


def keep_labels(batches: Iterator) -> list:
    """Keep the last leaf of each batch, which is small beside the others."""
    return [leaves(batch)[-1] for batch in batches]


def keep_outputs(batches: Iterator) -> list:
    """Keep the labels of each batch, and what stands for a model's outputs: memory of its own."""
    return [(_outputs(batch), leaves(batch)[-1]) for batch in batches]


def draw_two(batches: Iterator) -> object:
    """Draw two batches before the first is used, as prefetching wrappers do."""
    waiting, last = deque(islice(batches, 2)), None
    while waiting:
        waiting.extend(islice(batches, 1))
        last = waiting.popleft()
    return last


HABITS: dict[str, Callable[[Iterator], object]] = {
    "keep_all": list,
    "keep_every_third": lambda batches: list(islice(batches, 0, None, 3)),
    "keep_first": keep_first,
    "keep_samples": keep_samples,
    "keep_labels": keep_labels,
    "keep_outputs": keep_outputs,
    "keep_window": lambda batches: deque(batches, maxlen=5),
    "look_ahead": draw_two,
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


def steps(count: int, step_s: float) -> Use:
    """Take the first batches, with a step for each."""

    def use(loader: Iterable) -> None:
        for _ in islice(loader, count):
            time.sleep(step_s)

    return use


def three_at_once(loader: Iterable) -> None:
    """Iterate a loader three times at the same time."""
    for _ in zip(loader, loader, loader, strict=True):
        pass


def background(depth: int) -> Use:
    """Let a thread draw batches into a queue, as prefetchers do."""

    def use(loader: Iterable) -> None:
        waiting: queue.Queue = queue.Queue(depth)

        def draw() -> None:
            try:
                for batch in loader:
                    waiting.put([batch])
            finally:
                waiting.put(None)

        thread = threading.Thread(target=draw)
        thread.start()
        while waiting.get() is not None:
            time.sleep(_STEP_S)
        thread.join()

    return use


def look_ahead(depth: int) -> Use:
    """Draw so many batches before the first of them is used."""

    def use(loader: Iterable) -> None:
        drawn = iter(loader)
        waiting = deque(islice(drawn, depth))
        while waiting:
            time.sleep(_STEP_S)
            waiting.popleft()
            waiting.extend(islice(drawn, 1))

    return use


def fork_children(loader: Iterable) -> "Children":
    """Fork a child with a batch in hand now and then; all of them outlive the epoch."""
    children = Children()
    for turn, batch in enumerate(loader):
        if turn % 4 == 1:
            children.fork(batch)
    return children


class Children:
    """Forked children that hold what they inherited until the parent drops this object."""

    def __init__(self):
        self._pids = []

    def fork(self, _batch: object) -> None:
        """Start one more, unless there are enough; it has the caller's batch and does nothing."""
        if len(self._pids) == _CHILDREN:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pause()
            os._exit(0)
        self._pids.append(pid)

    def __del__(self):
        for pid in self._pids:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
