"""
How long next() takes on a ready batch while the workers run pure Python loops.

    python -m bench gil
"""

import argparse
import json
import time

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from shmloader import DataLoader

_LEAVES = 4
_WORKERS, _DEPTH = 2, 30
_BATCHES = _WORKERS * _DEPTH  # all are asked for at once, so workers loop while some are ready
_DRAWN = _BATCHES // 3
_LOOP_S = 0.04
_STEP_S = 0.004


class Loops(Dataset):
    """
    Batch-sized samples; each takes a loop that never gives the GIL away by itself.
    """

    def __len__(self) -> int:
        return _BATCHES

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        end = time.perf_counter() + _LOOP_S
        while time.perf_counter() < end:
            pass
        return [torch.full((1000,), index * _LEAVES + leaf) for leaf in range(_LEAVES)]


def main(arguments: list[str]) -> int:
    """
    Print a JSON line and a table line per loader; tell by the exit code if batches were right.
    """
    parser = argparse.ArgumentParser(prog="python -m bench gil", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args(arguments).rounds
    waits = {"ours": [], "torch": []}
    correct = True
    for _ in range(rounds):
        for name, loader_class in (("ours", DataLoader), ("torch", TorchDataLoader)):
            found, right = _round(loader_class)
            waits[name] += found
            correct = correct and right
    for name, found in waits.items():
        _show(name, found, correct)
    return 0 if correct else 1


def _round(loader_class: type) -> tuple[list[float], bool]:
    """
    Wait until two thirds of the batches lie ready, then draw one third.
    """
    loader = loader_class(Loops(), batch_size=None, num_workers=_WORKERS, prefetch_factor=_DEPTH)
    batches = iter(loader)
    time.sleep(_LOOP_S * _DEPTH * 2 / 3 + 0.2)
    waits, right = [], True
    for turn in range(_BATCHES):
        begin = time.perf_counter()
        batch = next(batches)
        waits.append((time.perf_counter() - begin) * 1e3)
        right = right and _is_right(turn, batch)
        time.sleep(_STEP_S if turn < _DRAWN else 0)
    return waits[1:_DRAWN], right  # the first next() is also the thread's first work


def _is_right(turn: int, batch: list) -> bool:
    return len(batch) == _LEAVES and all(
        bool((leaf == turn * _LEAVES + place).all()) for place, leaf in enumerate(batch)
    )


def _show(name: str, waits: list[float], correct: bool) -> None:
    figures = dict(zip(("p50", "p90", "p99"), np.percentile(waits, (50, 90, 99)), strict=True))
    figures = {point: round(float(ms), 4) for point, ms in figures.items()}
    print(json.dumps({"loader": name, "leaves": _LEAVES, "next_ms": figures, "correct": correct}))
    print(f"| {name} | {' | '.join(f'{ms:.3f}' for ms in figures.values())} |")
