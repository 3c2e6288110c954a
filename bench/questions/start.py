"""
How long workers take to their first batch, and what they hold, by start method.

    python -m bench start
    python -m bench start --workers 1 --workers 8 --workers 64 --rounds 3

Every batch is compared. Rows whose workers would not fit in memory are left out.
"""

import sys
import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch

from bench.driver import children, middles
from bench.loaders import opened
from bench.loads import Indices
from bench.question import Options, Question, number, numbers
from bench.usage import memory_bytes
from shmloader.memory import limits

_EPOCHS = 3
_WORKER_BYTES = 200_000_000  # of one that has imported torch by itself
_WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "torch, fork": ("torch", "fork", {}),
    "shmloader, fork": ("ours", "fork", {}),
    "torch, spawn": ("torch", "spawn", {}),
    "shmloader, spawn": ("ours", "spawn", {}),
    'shmloader, spawn, `preload=("numpy",)`': ("ours", "spawn", {"preload": ["numpy"]}),
    "torch, forkserver": ("torch", "forkserver", {}),
    "shmloader, forkserver": ("ours", "forkserver", {}),
}

_FIGURES = {
    "first batch, s": "first_s",
    "in later epochs, s": "later_s",
    "of a worker, MB": "worker_mb",
}


def run(loader: str, method: str, options: dict[str, Any], workers: int) -> dict:
    """Run the epochs, and look at the memory in the last one; options: more of the loader."""
    count = 16 * workers
    firsts_s, correct, worker_mb = [], True, 0.0
    options |= {"num_workers": workers, "multiprocessing_context": method}
    with opened(loader, Indices(count), batch_size=2, **options) as loaded:
        for epoch in range(_EPOCHS):
            begin = time.perf_counter()
            iterator = iter(loaded)
            batches = [next(iterator).clone()]
            firsts_s.append(time.perf_counter() - begin)
            for _ in range(workers):
                batches.append(next(iterator).clone())  # all have started
            if epoch == _EPOCHS - 1:
                held = [memory_bytes(worker.pid)["Pss"] for worker in iterator._workers]
                worker_mb = sum(held) / 1e6 / workers
            batches += [batch.clone() for batch in iterator]
            correct &= torch.equal(torch.cat(batches), torch.arange(count))
    figures = {"first_s": firsts_s[0], "later_s": median(firsts_s[1:]), "worker_mb": worker_mb}
    return {**figures, "correct": correct}


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each way and number of workers."""
    for workers in options.workers or (1, 8):
        rows = {way: partial(run, *_WAYS[way], workers) for way in _WAYS if _fits(way, workers)}
        for way, runs in children(rows, options.rounds).items():
            yield {"loader": way, "workers": workers, **middles(runs, _FIGURES)}


def _fits(way: str, workers: int) -> bool:
    loader, method, more = _WAYS[way]
    imports = method != "fork" and not more and (loader, method) != ("ours", "forkserver")
    needed = workers * _WORKER_BYTES if imports else 0
    if needed <= (limits.available_bytes() or 0):
        return True
    print(
        f"left out {way}, {workers} workers: no memory for {needed / 1e6:.0f} MB", file=sys.stderr
    )
    return False


QUESTION = Question(_records, {"workers": numbers("default: 1 and 8"), "rounds": number(1)})
