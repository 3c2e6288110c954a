"""
What it takes to go on in mid-epoch, by how far the epoch was, and what keeping the place costs.

    python -m bench resume
    python -m bench resume --samples 100000000 --no-torchdata

The first table has the time from iter() to the first batch: of a loader that begins an epoch, and
of one that goes on at a position, with a state that is made for it without running that far. With
torchdata installed its loader gets there too, for which it runs the epoch up to the position first.
The second table has what the record costs a batch, delivered beside a stand-in that keeps nothing.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy
import torch
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

import shmloader
from bench.options import parser_of
from bench.report.rows import Rows, add_json_option
from shmloader.core import Delivered, Indices, Plan, replay
from shmloader.trainer import planning

_COLUMNS = {
    "loader": "loader",
    "sampler": "sampler",
    "at batch": "position",
    "cold ms": "cold_ms",
    "resumed ms": "resumed_ms",
    "times cold": "times",
    "correct": "correct",
}
_COSTS = {
    "indices": "indices",
    "requests": "requests",
    "ns a batch": "batch_ns",
    "ns an index": "index_ns",
}
_SEED = 3
_POSITIONS = (0.0, 0.1, 0.5, 0.99)
_DELIVERED = 2000


class Numbers(Dataset):
    """Samples that cost nothing: their own indices, a batch at a time."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Batches(BatchSampler):
    """A user's batch sampler, which only its own code can iterate."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()


def collate(samples: list[int]) -> torch.Tensor:
    """Make one tensor of a batch's indices."""
    return torch.tensor(samples)


def open_loader(kind: Any, name: str, options: argparse.Namespace) -> Any:
    """Make a loader with two workers; name: of its sampler."""
    dataset = Numbers(options.samples)
    more: dict[str, Any] = {"batch_size": options.batch, "shuffle": name == "shuffled"}
    if name == "a user's":
        sampler = Batches(SequentialSampler(dataset), options.batch, drop_last=False)
        more = {"batch_sampler": sampler}
    generator = torch.Generator().manual_seed(_SEED)
    return kind(dataset, num_workers=2, collate_fn=collate, generator=generator, **more)


def first_batch(loader: Any) -> tuple[float, list[int]]:
    """Seconds from iter() to the first batch, and its indices."""
    begun = time.perf_counter()
    batch = next(iter(loader))
    return time.perf_counter() - begun, batch.tolist()


def state_at(name: str, position: int, options: argparse.Namespace) -> tuple[dict, list[int]]:
    """The state of our loader at a position, and the indices of the batch that comes there."""
    with open_loader(shmloader.DataLoader, name, options) as loader:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # the base seed
        before = loader.generator.get_state()
        drawn = planning.plan(loader.batch_sampler) or iter(loader.batch_sampler)
        number = total = 0
        while number < position:
            number, part = replay(drawn, number, position, set(), [])
            total += part
        indices = list(next(drawn))
        loader.generator.set_state(before)
        state = loader.state_dict()
    where = {"at": "epoch", "base_seed": 1, "drawn": position, "low": position}
    return {**state, **where, "checksum": total & (2**63 - 1)}, indices


def ours(name: str, position: int, options: argparse.Namespace) -> tuple[float, float, bool]:
    """Seconds of a cold start and of a resumed one, and whether the right batch came."""
    state, expected = state_at(name, position, options)
    with open_loader(shmloader.DataLoader, name, options) as loader:
        cold_s, _ = first_batch(loader)
    with open_loader(shmloader.DataLoader, name, options) as loader:
        loader.load_state_dict(state)
        resumed_s, found = first_batch(loader)
    return cold_s, resumed_s, found == expected


def torchdatas(
    kind: Any, name: str, position: int, options: argparse.Namespace
) -> tuple[float, float, bool]:
    """Likewise of torchdata's loader, which has to run up to the position first."""
    running = iter(loader := open_loader(kind, name, options))
    for _ in range(position):
        next(running)
    state, expected = loader.state_dict(), next(running).tolist()
    del running, loader
    cold_s, _ = first_batch(open_loader(kind, name, options))
    loader = open_loader(kind, name, options)
    loader.load_state_dict(state)
    resumed_s, found = first_batch(loader)
    return cold_s, resumed_s, found == expected


def main(arguments: list[str]) -> int:
    """Print the tables; the exit code is 0 if every resumed loader went on with the right batch."""
    warnings.simplefilter("ignore")
    options = _options(arguments)
    kinds: dict[str, Any] = {"shmloader": None}
    if not options.no_torchdata:
        try:
            from torchdata.stateful_dataloader import StatefulDataLoader

            kinds["torchdata"] = StatefulDataLoader
        except ImportError:
            print("torchdata is not installed: pip install torchdata", file=sys.stderr)
    rows, correct = Rows(_COLUMNS, options.json), True
    for name in ("in order", "shuffled", "a user's"):
        for part in _POSITIONS:
            position = int(part * (options.samples // options.batch))
            for owner, kind in kinds.items():
                correct &= _show(rows, owner, kind, name, position, options)
    print()
    _show_costs()
    return 0 if correct else 1


def _show(
    rows: Rows, owner: str, kind: Any, name: str, position: int, options: argparse.Namespace
) -> bool:
    rounds = options.rounds if kind is None else 1
    if kind is None:
        runs = [ours(name, position, options) for _ in range(rounds)]
    else:
        runs = [torchdatas(kind, name, position, options) for _ in range(rounds)]
    is_right = all(right for _, _, right in runs)
    rows.add(
        {
            "loader": owner,
            "sampler": name,
            "position": position,
            "cold_ms": 1e3 * median(cold_s for cold_s, _, _ in runs),
            "resumed_ms": 1e3 * median(resumed_s for _, resumed_s, _ in runs),
            "times": median(resumed_s / cold_s for cold_s, resumed_s, _ in runs),
            "correct": is_right,
        }
    )
    return is_right


class _Nothing:
    """Keeps nothing of what is delivered."""

    def draw(self, task: int, index: Any, state: bytes | None = None) -> None:
        pass

    def take(self, task: int, worker: int, snapshot: bytes | None = None) -> None:
        pass

    def hand_out(self) -> None:
        pass


def _show_costs() -> None:
    rows = Rows(_COSTS)
    for count in (1, 64, 256, 1024):
        indices = numpy.random.default_rng(1).permutation(count * _DELIVERED)
        planned = list(Plan(lambda: indices, count, True))  # noqa: B023
        for kind, requests in (
            ("planned", planned),
            ("lists", [each.tolist() for each in planned]),
        ):
            batch_s = _cost_s(requests)
            rows.add(
                {
                    "indices": count,
                    "requests": kind,
                    "batch_ns": 1e9 * batch_s,
                    "index_ns": 1e9 * batch_s / count,
                }
            )


def _cost_s(requests: list[Indices] | list[list[int]]) -> float:
    """Seconds a batch: median of alternating runs, less those that keep nothing."""
    with_it, without = [], []
    for _ in range(9):
        with_it.append(_deliver_s(Delivered(2, True), requests))
        without.append(_deliver_s(_Nothing(), requests))
    return (median(with_it) - median(without)) / len(requests)


def _deliver_s(delivered: Any, requests: list[Indices] | list[list[int]]) -> float:
    begun = time.perf_counter()
    for task, index in enumerate(requests):
        delivered.draw(task, index)
        delivered.take(task, 0, None)
        delivered.hand_out()
    return time.perf_counter() - begun


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("resume", __doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="of ours; torchdata has one")
    parser.add_argument("--no-torchdata", action="store_true")
    add_json_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
