"""
Seconds per batch of large and small ndarrays as workers are added, beside torch and the limit.

    python -m bench w1 --size small --workers 2 --workers 8
"""

import argparse
import math
import multiprocessing
import time
from itertools import islice

import numpy as np
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from bench.workloads import keep_list
from shmloader import DataLoader

_SHAPES = {"small": (10, 150), "large": (1000, 150)}
_BATCH, _BATCHES, _DROPPED = 128, 20, 5
_FETCH_S, _STEP_S = 0.003125, 0.05


class Records(IterableDataset):
    """
    Endless random records, each after the time that a fetch takes.
    """

    def __init__(self, shape: tuple[int, int]):
        self.shape = shape

    def __iter__(self):
        while True:
            time.sleep(_FETCH_S)
            yield np.random.random(self.shape)


def main(arguments: list[str]) -> int:
    """
    Print a row per size and number of workers; a batch of another shape fails the command.
    """
    options = _options(arguments)
    print("| size | workers | ours, s | torch, s | limit, s | ours / max(limit, step) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for size in options.size or _SHAPES:
        for workers in options.workers or ((2, 8) if options.quick else (2, 4, 6, 8)):
            ours = _loaded(DataLoader, _SHAPES[size], workers)
            theirs = _loaded(TorchDataLoader, _SHAPES[size], workers)
            limit = _limit(_SHAPES[size], workers)
            ratio = ours / max(limit, _STEP_S)
            figures = f"{ours:.3f} | {theirs:.3f} | {limit:.3f} | {ratio:.2f}"
            print(f"| {size} | {workers} | {figures} |", flush=True)
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench w1", description=__doc__)
    parser.add_argument("--size", action="append", choices=_SHAPES)
    parser.add_argument("--workers", action="append", type=int)
    parser.add_argument("--quick", action="store_true", help="2 and 8 workers only")
    return parser.parse_args(arguments)


def _loaded(loader_class: type, shape: tuple[int, int], workers: int) -> float:
    loader = loader_class(
        Records(shape), batch_size=_BATCH, num_workers=workers, prefetch_factor=4,
        collate_fn=keep_list, persistent_workers=True,
    )  # fmt: skip
    done = []
    for batch in islice(loader, _BATCHES):
        if len(batch) != _BATCH or any(record.shape != shape for record in batch):
            raise RuntimeError(f"a batch is not {_BATCH} records of {shape}")
        time.sleep(_STEP_S)
        done.append(time.perf_counter())
    return _seconds(done)


def _limit(shape: tuple[int, int], workers: int) -> float:
    """
    Let as many processes fetch and drop; only the times at which a batch was complete come back.
    """
    fork = multiprocessing.get_context("fork")
    each = math.ceil(_BATCHES / workers) + 1
    with fork.Pool(workers) as pool:
        stamps = pool.starmap(_fetch, [(shape, each)] * workers, chunksize=1)
    return _seconds(sorted(moment for found in stamps for moment in found)[:_BATCHES])


def _fetch(shape: tuple[int, int], batches: int) -> list[float]:
    records, done = iter(Records(shape)), []
    for _ in range(batches):
        list(islice(records, _BATCH))
        done.append(time.perf_counter())
    return done


def _seconds(done: list[float]) -> float:
    return (done[-1] - done[_DROPPED - 1]) / (_BATCHES - _DROPPED)
