"""
What a batch costs the training process: its CPU time, where workers do next to nothing.

    python -m bench trainer
    python -m bench trainer --load shuffled --epochs 9

Loads: `tiny` is a batch of one (8,) float32 and an int; `shuffled` and `sequential` draw 256
indices of a million and deliver one int, so that drawing is what is left; `leaves` has 60 tensors
to wrap. One worker, which is always ahead; CPU time of the process, all its threads.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch.utils.data import Dataset

import shmloader
from bench.options import parser_of
from bench.report.rows import Rows, add_json_option

_COLUMNS = {
    "load": "load",
    "torch us": "torch_us",
    "ours us": "ours_us",
    "times torch": "times_torch",
    "correct": "correct",
}


class Tiny(Dataset):
    """Samples ((8,) float32, int)."""

    def __init__(self, count: int):
        self._count = count
        self._row = torch.arange(8, dtype=torch.float32)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._row, index


class Drawn(Dataset):
    """Of each request, the first index."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices[:1]


class Leaves(Dataset):
    """Samples of 60 tensors (4,) float32 by name, and the index."""

    def __init__(self, count: int):
        self._count = count
        self._leaves = {f"leaf {number}": torch.zeros(4) + number for number in range(60)}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._leaves, index


@dataclass(frozen=True)
class Load:
    """A dataset, how it is batched, and which index a batch stands for."""

    dataset: Dataset
    batch_size: int
    shuffle: bool
    index_of: Callable[[Any], int]


LOADS = {
    "tiny": Load(Tiny(10_000), 1, False, lambda batch: int(batch[1])),
    "shuffled": Load(Drawn(256 * 4_000), 256, True, int),
    "sequential": Load(Drawn(256 * 4_000), 256, False, int),
    "leaves": Load(Leaves(4_000), 1, False, lambda batch: int(batch[1])),
}


@dataclass
class Contender:
    """A loader of one worker, and what its epochs cost."""

    loader: Any
    us: list[float] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)

    def check(self, index_of: Callable[[Any], int]) -> None:
        """Run an epoch that is looked at and not timed."""
        torch.manual_seed(5)  # of which the order is drawn
        self.drawn = [index_of(batch) for batch in self.loader]

    def run(self) -> None:
        """Run an epoch that is timed."""
        count, before = 0, time.process_time()
        for _ in self.loader:
            count += 1
        self.us.append(1e6 * (time.process_time() - before) / count)


def main(arguments: list[str]) -> int:
    """Print a row per load; the exit code is 0 if both loaders delivered the same."""
    options = _options(arguments)
    torch.set_num_threads(1)
    rows = Rows(_COLUMNS, options.json)
    results = [_record(name, options.epochs) for name in options.load or LOADS]
    for record in results:
        rows.add(record)
    return 0 if all(record["correct"] for record in results) else 1


def _record(name: str, epochs: int) -> dict:
    load = LOADS[name]
    kinds = (torch.utils.data.DataLoader, shmloader.DataLoader)
    contenders = [Contender(_open(kind, load)) for kind in kinds]
    try:
        for contender in contenders:
            contender.check(load.index_of)
        for _ in range(epochs):
            for contender in contenders:
                contender.run()
    finally:
        for contender in contenders:
            if contender.loader._iterator is not None:
                contender.loader._iterator._shutdown_workers()
    theirs, own = (median(contender.us) for contender in contenders)
    return {
        "load": name,
        "torch_us": theirs,
        "ours_us": own,
        "times_torch": theirs / own,
        "correct": contenders[0].drawn == contenders[1].drawn,
    }


def _open(kind: Any, load: Load) -> Any:
    return kind(
        load.dataset,
        load.batch_size,
        load.shuffle,
        num_workers=1,
        prefetch_factor=8,
        persistent_workers=True,
    )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("trainer", __doc__)
    parser.add_argument("--load", action="append", choices=LOADS, help="may be repeated")
    parser.add_argument("--epochs", type=int, default=5, help="that are timed")
    add_json_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
