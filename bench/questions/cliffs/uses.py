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
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

import numpy as np

from bench.batches import leaves

_CHILDREN = 8
STEP_S = 0.005  # long enough for the queue behind it to fill

Use = Callable[..., object]


def stream(*loaders: Iterable) -> None:
    """Take every batch and drop it; several loaders one after the other, as train and val are."""
    for loader in loaders:
        for _ in loader:
            pass


def keep_first(loader: Iterable) -> object:
    batches = iter(loader)
    first = next(batches)
    for _ in batches:
        pass
    return first


def keep_samples(loader: Iterable) -> list:
    """Keep the first sample of each batch; its leaves are views, which hold the whole batch."""
    return [_first_sample(batch) for batch in loader]


def keep_labels(loader: Iterable) -> list:
    """Keep the last leaf of each batch, which is small beside the others."""
    return [leaves(batch)[-1] for batch in loader]


def keep_outputs(loader: Iterable) -> list:
    """Keep the labels of each batch, and what stands for a model's outputs: memory of its own."""
    return [(_outputs(batch), leaves(batch)[-1]) for batch in loader]


def look_ahead(loader: Iterable, depth: int = 2, step_s: float = 0.0) -> object:
    """Draw some batches before the first of them is used, as prefetching wrappers do."""
    drawn = iter(loader)
    waiting, last = deque(islice(drawn, depth)), None
    while waiting:
        time.sleep(step_s)
        last = waiting.popleft()
        waiting.extend(islice(drawn, 1))
    return last


HABITS: dict[str, Use] = {
    "keep_all": list,
    "keep_every_third": lambda loader: list(islice(loader, 0, None, 3)),
    "keep_first": keep_first,
    "keep_samples": keep_samples,
    "keep_labels": keep_labels,
    "keep_outputs": keep_outputs,
    "keep_window": partial(deque, maxlen=5),
    "look_ahead": look_ahead,
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


def steps(loader: Iterable, count: int, step_s: float) -> None:
    """Take the first batches, with a step for each."""
    for _ in islice(loader, count):
        time.sleep(step_s)


def three_at_once(loader: Iterable) -> None:
    """Iterate a loader three times at the same time."""
    for _ in zip(loader, loader, loader, strict=True):
        pass


def background(loader: Iterable, depth: int) -> None:
    """Let a thread draw batches into a queue, as prefetchers do."""
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
        time.sleep(STEP_S)
    thread.join()


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
