"""`--threads`: are the samples of a dataset the same when threads fetch them?"""

import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import IterableDataset

from shmloader.cli.command import CommandError
from shmloader.cli.doctor.finding import Finding
from shmloader.samples.skip_errors import is_fetched_singly
from shmloader.worker.fetch_threads import FetchThreads, Task
from shmloader.worker.seeds import Turn

_NAME = "fetch threads"
_COUNTS = (2, 8, 32)
_ROUNDS = 2  # of each count
_SAMPLES, _AT_ONCE = 512, 8
_SECONDS = 10.0  # for the samples that are fetched by one thread
_SWITCH_S = 1e-5  # between Python's threads, so that those meet that would once in an epoch
_REMEDY = (
    "the threads share something in the dataset, such as an open file: give each thread its own, "
    "by threading.local(), or leave fetch_threads=0"
)


def compare_threads(made: Any) -> Finding:
    """Fetch the same samples with one thread and with several, and compare every bit."""
    dataset = getattr(made, "dataset", made)
    if isinstance(dataset, IterableDataset):
        raise CommandError("an iterable dataset is read in order: fetch_threads does not serve it")
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise CommandError(
            f"the function returned {type(made).__name__}: have it return a map-style dataset "
            "with a length, or a loader of one"
        )
    tasks = _Tasks(dataset)
    expected = tasks.fetch(1, _SECONDS)
    if not expected:
        raise CommandError("the dataset has no samples")
    again = tasks.fetch(1, 2 * _SECONDS, len(expected))
    pairs = enumerate(zip(expected, again, strict=False))
    fixed = [number for number, (one, other) in pairs if one == other]
    return _judge(tasks, expected, fixed)


def _judge(tasks: "_Tasks", expected: Sequence[Any], fixed: Sequence[int]) -> Finding:
    if not fixed:
        raise CommandError(
            "no sample is the same twice, even with one thread, so nothing can be compared: turn "
            "random augmentations off for this check, or let them draw from rng()"
        )
    with _switching_often():
        for count in _COUNTS * _ROUNDS:
            found = tasks.fetch(count, float("inf"), len(expected))
            for number in fixed:
                if found[number] != expected[number]:
                    index = tasks.indices[number]
                    fact = f"the sample of index {index} differs with {count} threads"
                    return Finding(_NAME, "problem", fact, _REMEDY)
    most = max(_COUNTS)
    fact = f"{len(fixed)} fetches gave the same bits with 1 and with up to {most} threads"
    if len(fixed) == len(expected):
        return Finding(_NAME, "ok", fact)
    fact += f"; {len(expected) - len(fixed)} differ with one thread, too, and were not compared"
    return Finding(_NAME, "note", fact, "turn random augmentations off to compare all")


class _Tasks:
    """The fetches that are compared: samples, or lists of them where the dataset takes those."""

    def __init__(self, dataset: Any) -> None:
        count = min(len(dataset), _SAMPLES)
        self.indices: list[Any] = list(range(count))
        self._fetch: Callable[[Any], Any] = dataset.__getitem__
        if not is_fetched_singly(dataset, False):
            self.indices = [self.indices[at : at + _AT_ONCE] for at in range(0, count, _AT_ONCE)]
            self._fetch = dataset.__getitems__

    def fetch(self, threads: int, seconds: float, most: int = _SAMPLES) -> list[Any]:
        """Fetch by so many threads, for about so long. Returns the bits of samples, and errors."""
        tasks = [
            Task(self._fetch, index, Turn((0, 0, 0), None, number))
            for number, index in enumerate(self.indices[:most])
        ]
        if threads == 1:
            deadline = time.monotonic() + seconds
            for task in tasks:
                task.run()
                if time.monotonic() > deadline:
                    break
        else:
            _run_on_threads(tasks, threads)
        return [bits_of(_outcome(task)) for task in tasks if task.is_done]


def _run_on_threads(tasks: Sequence[Task], count: int) -> None:
    done: SimpleQueue[Task] = SimpleQueue()
    threads = FetchThreads(count, done.put)
    for task in tasks:
        threads.put(task)
    for _ in tasks:
        done.get()
    threads.end()


def _outcome(task: Task) -> Any:
    try:
        return task.take()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return error


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def bits_of(sample: Any) -> Any:
    """What two samples have in common if they are the same bit for bit."""
    if isinstance(sample, BaseException):
        return type(sample), str(sample)
    leaves, containers = tree_flatten(sample)
    return containers, [_bits_of_leaf(leaf) for leaf in leaves]


def _bits_of_leaf(value: Any) -> Any:
    # A float that is no number equals nothing, and -0.0 equals 0.0.
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
        flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return value.dtype, value.shape, flat.numpy().tobytes()
    if isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return value.dtype, value.shape, value.tobytes()
    try:
        return pickle.dumps(value)
    except Exception:
        return value
