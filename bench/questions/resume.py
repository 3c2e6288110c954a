"""
What it takes to go on in mid-epoch, by how far the epoch was.

    python -m bench resume
    python -m bench resume --samples 100000000

That is the time from iter() to the first batch, of a loader that begins an epoch and of one that
goes on at a position, with a state that is made for it without running that far.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, SequentialSampler

from bench.driver import middle
from bench.loads import Indices
from shmloader import DataLoader
from shmloader.core import replay
from shmloader.order import planning

COLUMNS = {
    "sampler": "sampler",
    "at batch": "position",
    "cold ms": "cold_ms",
    "resumed ms": "resumed_ms",
    "times cold": "times",
    "correct": "correct",
}
_POSITIONS = (0.0, 0.1, 0.5, 0.99)


class Batches(BatchSampler):
    """A user's batch sampler, which only its own code can iterate."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()


def open_loader(name: str, options: argparse.Namespace) -> DataLoader:
    """Make a loader with two workers; name: of its sampler."""
    dataset = Indices(options.samples)
    more: dict[str, Any] = {"batch_size": options.batch, "shuffle": name == "shuffled"}
    if name == "a user's":
        sampler = Batches(SequentialSampler(dataset), options.batch, drop_last=False)
        more = {"batch_sampler": sampler}
    generator = torch.Generator().manual_seed(3)
    return DataLoader(dataset, num_workers=2, collate_fn=torch.tensor, generator=generator, **more)


def state_at(name: str, position: int, options: argparse.Namespace) -> tuple[dict, list[int]]:
    """The state of a loader at a position, and the indices of the batch that comes there."""
    with open_loader(name, options) as loader:
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


def records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row per sampler and position; it is right if it went on with that batch."""
    warnings.simplefilter("ignore")  # of draws, which there are not
    for name in ("in order", "shuffled", "a user's"):
        for part in _POSITIONS:
            position = int(part * (options.samples // options.batch))
            runs = [_start(name, position, options) for _ in range(options.rounds)]
            yield {
                "sampler": name,
                "position": position,
                **{figure: middle(runs, figure) for figure in ("cold_ms", "resumed_ms", "times")},
                "correct": all(run["correct"] for run in runs),
            }


def _start(name: str, position: int, options: argparse.Namespace) -> dict:
    """A cold start and a resumed one, and True if the right batch came."""
    state, expected = state_at(name, position, options)
    cold_ms, _ = _first_batch(name, options, None)
    resumed_ms, found = _first_batch(name, options, state)
    times = {"cold_ms": cold_ms, "resumed_ms": resumed_ms, "times": resumed_ms / cold_ms}
    return {**times, "correct": found == expected}


def _first_batch(
    name: str, options: argparse.Namespace, state: dict | None
) -> tuple[float, list[int]]:
    """Milliseconds from iter() to the first batch, and its indices."""
    with open_loader(name, options) as loader:
        if state:
            loader.load_state_dict(state)
        begun = time.perf_counter()
        first = next(iter(loader)).tolist()
        return 1e3 * (time.perf_counter() - begun), first


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
