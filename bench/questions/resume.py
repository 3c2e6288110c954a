"""
What it takes to go on in mid-epoch, by how far the epoch was.

    python -m bench resume
    python -m bench resume --samples 100000000

That is the time from iter() to the first batch, of a loader that begins an epoch and of one that
goes on at a position, with the state of a loader that was there.
"""

import time
import warnings
from collections.abc import Iterator
from itertools import islice

import torch

from bench.driver import middles
from bench.loads import Indices
from bench.question import Options, Question, number
from shmloader import DataLoader

_POSITIONS = (0.0, 0.1, 0.5, 0.99)
_FIGURES = {"cold ms": "cold_ms", "resumed ms": "resumed_ms", "times cold": "times"}


def records(options: Options) -> Iterator[dict]:
    """Yield a row per sampler and position; it is right if it went on with that batch."""
    warnings.simplefilter("ignore")  # of draws, which there are not
    for name in ("in order", "shuffled"):
        for part in _POSITIONS:
            position = int(part * (options.samples // options.batch))
            runs = [_start(name, position, options) for _ in range(options.rounds)]
            figures = middles(runs, _FIGURES)
            yield {"sampler": name, "at batch": position, **figures}


def _start(name: str, position: int, options: Options) -> dict:
    """A cold start and a resumed one, and True if the right batch came."""
    with _open(name, options) as loader:
        batches = iter(loader)
        for _ in islice(batches, position):
            pass
        state, expected = loader.state_dict(), next(batches).tolist()
    cold_ms, _ = _first_batch(name, options, None)
    resumed_ms, found = _first_batch(name, options, state)
    times = {"cold_ms": cold_ms, "resumed_ms": resumed_ms, "times": resumed_ms / cold_ms}
    return {**times, "correct": found == expected}


def _first_batch(name: str, options: Options, state: dict | None) -> tuple[float, list[int]]:
    """Milliseconds from iter() to the first batch, and its indices."""
    with _open(name, options) as loader:
        if state:
            loader.load_state_dict(state)
        begun = time.perf_counter()
        first = next(iter(loader)).tolist()
        return 1e3 * (time.perf_counter() - begun), first


def _open(name: str, options: Options) -> DataLoader:
    order = {"shuffle": name == "shuffled", "generator": torch.Generator().manual_seed(3)}
    rows = Indices(options.samples)
    return DataLoader(rows, options.batch, num_workers=2, collate_fn=torch.tensor, **order)


QUESTION = Question(
    records, {"samples": number(1_000_000), "batch": number(100), "rounds": number(3)}
)
