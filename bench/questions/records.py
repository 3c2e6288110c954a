"""
Random records that take a while to fetch, as lists, and workers that only fetch.

A worker's records come from numpy's generator seeded with its number, so the trainer can make them
once more and compare.
"""

import multiprocessing
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from bench.batches import difference, touch

BATCH = 128
PREFETCH = 4  # batches ahead per worker
FETCH_S = 0.003125

_JOIN_S = 10

Shape = tuple[int, int]


class Records(IterableDataset):
    """The endless records of the worker that iterates, each after the time that a fetch takes."""

    def __init__(self, shape: Shape):
        self._shape = shape

    def __iter__(self) -> Iterator[np.ndarray]:
        return fetch(self._shape, get_worker_info().id)


def fetch(shape: Shape, worker: int) -> Iterator[np.ndarray]:
    """Yield a worker's records."""
    generator = np.random.RandomState(worker)  # what np.random.random() is, with a seed
    while True:
        time.sleep(FETCH_S)
        yield generator.random_sample(shape)


class Replay:
    """
    The batches that workers should have made, in the order in which the trainer gets them.

    Worker n makes every batch whose turn is n modulo the number of workers.
    """

    def __init__(self, shape: Shape):
        self._shape = shape
        self._streams: dict[int, np.random.RandomState] = {}
        self._made: dict[int, list[tuple]] = {}  # by worker: the generator's state, the touches

    def mistake(self, workers: int, touches: list, last: list) -> str | None:
        """
        Compare the touches of every batch, and the last batch whole. Returns None if all is right.
        """
        for turn, found in enumerate(touches):
            if found != self._batch(turn, workers)[1]:
                return f"batch {turn}: a touched value is not the dataset's"
        state, _ = self._batch(len(touches) - 1, workers)
        again = np.random.RandomState()
        again.set_state(state)
        return difference(self._records(again), last)

    def _batch(self, turn: int, workers: int) -> tuple:
        worker, number = turn % workers, turn // workers
        stream = self._streams.setdefault(worker, np.random.RandomState(worker))
        made = self._made.setdefault(worker, [])
        while len(made) <= number:
            made.append((stream.get_state(), touch(self._records(stream))))
        return made[number]

    def _records(self, stream: np.random.RandomState) -> list[np.ndarray]:
        return [stream.random_sample(self._shape) for _ in range(BATCH)]


class FetchOnly:
    """
    As many workers that fetch batches and drop them, as far ahead as a loader's.

    Each releases a semaphore when a batch is complete; the trainer gets nothing else. The workers
    go on from pass to pass.
    """

    def __init__(self, shape: Shape, workers: int, context: str):
        method = multiprocessing.get_context(context)
        self._wanted = [method.Semaphore(PREFETCH) for _ in range(workers)]
        self._complete = [method.Semaphore(0) for _ in range(workers)]
        self._processes = [
            method.Process(target=_fetch_and_drop, args=(shape, worker, *pair), daemon=True)
            for worker, pair in enumerate(zip(self._wanted, self._complete, strict=True))
        ]
        self._started = False

    def __iter__(self) -> Iterator[None]:
        if self._started:
            self._reset()
        else:
            self._start()
        while True:
            for wanted, complete in zip(self._wanted, self._complete, strict=True):
                complete.acquire()
                wanted.release()
                yield None

    def _start(self) -> None:
        self._started = True
        for process in self._processes:
            process.start()

    def _reset(self) -> None:
        """Begin with nothing ahead, as a loader does: batches in flight are made and dropped."""
        for complete in self._complete:
            for _ in range(PREFETCH):
                complete.acquire()
        for wanted in self._wanted:
            for _ in range(PREFETCH):
                wanted.release()

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.terminate()
            process.join(_JOIN_S)


def _fetch_and_drop(shape: Shape, worker: int, wanted, complete) -> None:
    records = fetch(shape, worker)
    while wanted.acquire():
        list(islice(records, BATCH))
        complete.release()
