"""
CPU time of a worker per batch when the samples or the collate function are not torch's own.

    python -m bench collates
    python -m bench collates --kind pictures --repeats 9

The subclasses of Tensor and the collate functions stand in for those of well-known packages: they
do the same with torch, and need none of them.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, default_collate

from bench import usage
from bench.options import parser_of
from bench.report.machine import CHECKOUT
from bench.report.rows import Rows, add_json_option
from shmloader import DataLoader

_COLUMNS = {
    "kind": "kind",
    "MB": "mb",
    "torch ms": "torch_ms",
    "ours ms": "ours_ms",
    "times torch": "times_torch",
    "pickled": "pickled",
    "retired": "retired",
    "correct": "correct",
}
_WARM_UP = 12  # batches: until every slot has been used


class Samples(Dataset):
    """The same samples again and again, so that fetching them is free."""

    def __init__(self, samples: list, batches: int):
        self._samples = samples
        self._length = len(samples) * batches

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int):
        return self._samples[index % len(self._samples)]


def _kinds() -> dict[str, Callable]:
    """List the kinds: each gives the samples of a batch, and their collate function."""
    from tests.helpers import collates  # beside the package, not a part of it

    def pictures(kind: type) -> list:
        return [torch.rand(3, 224, 224).as_subclass(kind) for _ in range(64)]

    def scans() -> list:
        made = [torch.rand(1, 96, 96, 16).as_subclass(collates.Scan) for _ in range(16)]
        for number, scan in enumerate(made):
            scan.about = {"number": number, "spacing": torch.ones(3)}
        return made

    def graph(nodes: int) -> object:
        return collates.Graph(torch.rand(nodes, 64), torch.randint(nodes, (2, 4 * nodes)))

    return {
        "tensors": lambda: (pictures(torch.Tensor), default_collate),
        "pictures": lambda: (pictures(collates.Picture), default_collate),
        "copied function": lambda: (pictures(torch.Tensor), collates.collate_untyped),
        "scans": lambda: (scans(), collates.collate_scans),
        "graphs": lambda: ([graph(40 + i % 40) for i in range(128)], collates.collate_graphs),
    }


def main(arguments: list[str]) -> int:
    """Print a row per kind; the exit code is 0 if every batch was right."""
    sys.path.insert(0, str(CHECKOUT))
    kinds = _kinds()
    options = _options(arguments, list(kinds))
    torch.set_num_threads(1)
    rows = Rows(_COLUMNS, options.json)
    correct = True
    for name in options.kind or kinds:
        samples, collate_fn = kinds[name]()
        record = {"kind": name, **_measure(samples, collate_fn, options)}
        rows.add(record)
        correct = correct and record["correct"]
    return 0 if correct else 1


def _options(arguments: list[str], kinds: list[str]) -> argparse.Namespace:
    parser = parser_of("collates", __doc__)
    parser.add_argument("--kind", action="append", choices=kinds, help="may be repeated")
    parser.add_argument("--batches", type=int, default=30, help="per timed epoch")
    parser.add_argument("--repeats", type=int, default=5, help="timed epochs of each contender")
    add_json_option(parser)
    return parser.parse_args(arguments)


def _measure(samples: list, collate_fn: Callable, options: argparse.Namespace) -> dict:
    """Let both take turns: medians of a worker's CPU time, and of the ratio within each round."""
    right = collate_fn(samples)
    rounds = [
        [
            _epoch(each, samples, collate_fn, right, options)
            for each in (TorchDataLoader, DataLoader)
        ]
        for _ in range(options.repeats)
    ]
    theirs, ours = ([turn[place] for turn in rounds] for place in (0, 1))
    return {
        "mb": sum(leaf.nbytes for leaf in _leaves(right)) / 1e6,
        "torch_ms": median(epoch["ms"] for epoch in theirs),
        "ours_ms": median(epoch["ms"] for epoch in ours),
        "times_torch": median(one["ms"] / other["ms"] for one, other in rounds),
        "pickled": ours[-1]["pickled"],
        "retired": sum(epoch["retired"] for epoch in ours),
        "correct": all(epoch["correct"] for epoch in theirs + ours),
    }


def _epoch(loader_class: type, samples: list, collate_fn, right, options) -> dict:
    """Time an epoch; its first batches are not timed, and each batch is compared whole."""
    loader = loader_class(
        Samples(samples, _WARM_UP + options.batches + 1),
        batch_size=len(samples),
        num_workers=1,
        collate_fn=collate_fn,
        prefetch_factor=1,
    )
    batches, correct, begin, end = iter(loader), True, 0.0, 0.0
    for number, batch in enumerate(batches):
        if number == _WARM_UP:
            begin = usage.totals()["worker_cpu_s"]
        elif number == _WARM_UP + options.batches:
            end = usage.totals()["worker_cpu_s"]
        correct = correct and _same(right, batch)
        del batch
    stats = loader.stats() if isinstance(loader, DataLoader) else None
    return {
        "ms": 1000 * (end - begin) / options.batches,
        "correct": correct,
        "pickled": bool(stats and stats.pickled_batches),
        "retired": stats.retired if stats else 0,
    }


def _leaves(batch) -> Iterator[torch.Tensor]:
    yield from (batch,) if isinstance(batch, torch.Tensor) else vars(batch).values()


def _same(expected, actual) -> bool:
    """Compare types and values of the leaves of two batches."""
    return type(expected) is type(actual) and all(
        type(one) is type(other) and bool(torch.equal(one, other))
        for one, other in zip(_leaves(expected), _leaves(actual), strict=True)
    )
