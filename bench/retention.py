"""
Batches per second while batches are kept, beside torch and beside copying what is kept.

    python -m bench retention
"""

import argparse
import time
import warnings
from collections import deque
from itertools import islice

import torch

from bench.batches import difference
from bench.contenders import ours, torch_fd
from bench.workloads import workload

_WINDOW = 5


def keep_all(batches, keep):
    return [keep(batch) for batch in batches]


def keep_every_third(batches, keep):
    return [keep(batch) for turn, batch in enumerate(batches) if turn % 3 == 0]


def keep_first(batches, keep):
    return [keep(batch) for turn, batch in enumerate(batches) if turn == 0]


def keep_samples(batches, keep):
    return [keep([leaf[0] for leaf in batch]) for batch in batches]


def keep_window(batches, keep):
    return list(deque(map(keep, batches), maxlen=_WINDOW))


def look_ahead(batches, keep):
    """
    Draw two batches before the first is used, as prefetching wrappers do.
    """
    batches = map(keep, batches)
    waiting, last = deque(islice(batches, 2)), None
    while waiting:
        waiting.extend(islice(batches, 1))
        last = waiting.popleft()
    return [last]


WAYS = {
    way.__name__: way
    for way in (keep_all, keep_every_third, keep_first, keep_samples, keep_window, look_ahead)
}


def main(arguments: list[str]) -> int:
    """
    Print one row per workload and way; the exit code tells whether what was kept was right.
    """
    parser = argparse.ArgumentParser(prog="python -m bench retention", description=__doc__)
    parser.add_argument("--workload", action="append", choices=("cifar", "imagenet"))
    parser.add_argument("--batches", type=int, default=40, help="per epoch")
    options = parser.parse_args(arguments)
    print("| workload | way | ours /s | ours, copying /s | torch /s | spilled | correct |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    warnings.simplefilter("ignore")  # the retention warning is the point here
    rows = [
        _row(name, way, options.batches)
        for name in options.workload or ("cifar", "imagenet")
        for way in WAYS
    ]
    return 0 if all(rows) else 1


def _row(name: str, way: str, batches: int) -> bool:
    chosen = workload(name, batches)
    rate, spilled, kept = _measured(ours, chosen, way, _as_it_is)
    copying, _, right = _measured(ours, chosen, way, _copied)
    correct = difference(right, kept) is None
    del kept, right
    theirs, _, _ = _measured(torch_fd, chosen, way, _as_it_is)
    word = "yes" if correct else "NO"
    line = f"{rate:.1f} | {copying:.1f} | {theirs:.1f} | {spilled} | {word}"
    print(f"| {name} | {way} | {line} |", flush=True)
    return correct


def _measured(contender, chosen, way: str, keep) -> tuple[float, int, list]:
    """
    Time the second epoch; what the first one kept is gone by then.
    """
    loader = contender.make_loader(chosen, 2, persistent=True, context="fork")
    try:
        deque(loader, maxlen=0)
        begin = time.perf_counter()
        kept = WAYS[way](iter(loader), keep)
        rate = chosen.batches / (time.perf_counter() - begin)
        spilled = loader.stats().spilled if hasattr(loader, "stats") else 0
    finally:
        loader.close()
    return rate, spilled, kept


def _as_it_is(batch):
    return batch


def _copied(batch):
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in batch]
