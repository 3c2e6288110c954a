"""
How long workers take to their first batch, and what they hold, by start method.

    python -m bench start
    python -m bench start --workers 1 --workers 8 --workers 64 --rounds 3

Workers are started anew for each of three epochs of a dataset without work, whose pickle is empty
or has 50 MB. Torch's loader and ours take turns, each in a process of its own. Every batch is
compared. The memory is the sum of PSS of all processes while the workers of the last epoch live:
what processes share counts once. Rows whose workers would not fit in memory are left out.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.driver import alone, in_turns, middle
from bench.loaders import LOADERS
from bench.usage import descendants, memory_bytes, process_ids
from shmloader.memory import limits

_EPOCHS = 3
_WORKER_BYTES = 200_000_000  # of one that has imported torch by itself
_FILES = {"empty": 0, "50 MB": 50_000_000}
_WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "torch, fork": ("torch", "fork", {}),
    "shmloader, fork": ("ours", "fork", {}),
    "torch, spawn": ("torch", "spawn", {}),
    "shmloader, spawn": ("ours", "spawn", {}),
    'shmloader, spawn, `preload=("numpy",)`': ("ours", "spawn", {"preload": ["numpy"]}),
    "torch, forkserver": ("torch", "forkserver", {}),
    "shmloader, forkserver": ("ours", "forkserver", {}),
}
COLUMNS = {
    "loader": "way",
    "workers": "workers",
    "pickle": "pickle",
    "first batch, s": "first_s",
    "in later epochs, s": "later_s",
    "PSS of all, MB": "all_mb",
    "of a worker, MB": "worker_mb",
    "correct": "correct",
}


class Numbers(Dataset):
    """Its samples are their indices, and it takes some bytes along."""

    def __init__(self, count: int, pickle_bytes: int) -> None:
        self.count = count
        self.data = bytes(pickle_bytes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index)


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        loader: "ours" or "torch".
        method: The start method.
        options: More of the loader.
        workers: How many.
        pickle_bytes: What the dataset takes along.
    """

    loader: str
    method: str
    options: dict[str, Any]
    workers: int
    pickle_bytes: int


def run(row: Row) -> dict:
    """Run the epochs, and look at the memory in the last one."""
    count = 16 * row.workers
    found: dict[str, Any] = {"firsts": [], "correct": True}
    loader = LOADERS[row.loader](
        Numbers(count, row.pickle_bytes),
        batch_size=2,
        num_workers=row.workers,
        multiprocessing_context=row.method,
        **row.options,
    )
    with closing(loader):
        for epoch in range(_EPOCHS):
            begin = time.perf_counter()
            iterator = iter(loader)
            batches = [next(iterator).clone()]
            found["firsts"].append(time.perf_counter() - begin)
            for _ in range(row.workers):
                batches.append(next(iterator).clone())  # all have started
            if epoch == _EPOCHS - 1:
                found |= _memory(iterator)
            batches += [batch.clone() for batch in iterator]
            found["correct"] &= torch.equal(torch.cat(batches)[:, 3], torch.arange(count))
    return found


def _memory(iterator: Any) -> dict[str, float]:
    trainer, _ = process_ids()
    workers = [worker.pid for worker in iterator._workers]
    return {
        "all_mb": sum(_pss_mb(pid) for pid in [trainer, *descendants(trainer)]),
        "worker_mb": sum(map(_pss_mb, workers)) / len(workers),
    }


def _pss_mb(pid: int) -> float:
    return memory_bytes(pid)["Pss"] / 1e6


def records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row for each way, number of workers and pickle."""
    for workers in options.workers or (1, 8):
        for pickle, pickle_bytes in _FILES.items():
            ways = [way for way in _WAYS if _fits(way, workers, pickle_bytes)]
            runs = in_turns(
                ways,
                options.rounds,
                lambda way, of=workers, size=pickle_bytes: alone(Row(*_WAYS[way], of, size))[0],
            )
            for way, found in runs.items():
                yield {
                    "way": way,
                    "workers": workers,
                    "pickle": pickle,
                    "first_s": median(each["firsts"][0] for each in found),
                    "later_s": median(first for each in found for first in each["firsts"][1:]),
                    "all_mb": middle(found, "all_mb"),
                    "worker_mb": middle(found, "worker_mb"),
                    "correct": all(each["correct"] for each in found),
                }


def _fits(way: str, workers: int, pickle_bytes: int) -> bool:
    loader, method, more = _WAYS[way]
    imports = method != "fork" and not more and (loader, method) != ("ours", "forkserver")
    needed = workers * (pickle_bytes + (_WORKER_BYTES if imports else 0))
    if needed < (limits.available_bytes() or 0):
        return True
    print(
        f"left out {way}, {workers} workers: no memory for {needed / 1e6:.0f} MB", file=sys.stderr
    )
    return False


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--workers", type=int, action="append", help="default: 1 and 8")
    parser.add_argument("--rounds", type=int, default=1)
