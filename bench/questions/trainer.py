"""
What a batch costs the training process: its CPU time, where workers do next to nothing.

    python -m bench trainer
    python -m bench trainer --load shuffled --epochs 9

Loads: `tiny` is a batch of one (8,) float32 and an int; `shuffled` and `sequential` draw 256
indices of a million and deliver one int, so that drawing is what is left; `leaves` has 60 tensors
to wrap. One worker, which is always ahead; CPU time of the process, all its threads.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from bench.driver import in_turns, middle, ratio
from bench.loaders import LOADERS
from bench.loads import Indices, Made
from bench.question import Options, Question, number, several


class Load(NamedTuple):
    """A dataset, how it is batched, and which index a batch stands for."""

    dataset: Dataset
    batch_size: int
    shuffle: bool
    index_of: Callable[[Any], int]


_ROW = torch.arange(8, dtype=torch.float32)
_LEAVES = {f"leaf {number}": torch.zeros(4) + number for number in range(60)}
_MILLION = Indices(256 * 4_000, most=1)
LOADS = {
    "tiny": Load(Made(10_000, lambda index: (_ROW, index)), 1, False, lambda batch: int(batch[1])),
    "shuffled": Load(_MILLION, 256, True, int),
    "sequential": Load(_MILLION, 256, False, int),
    "leaves": Load(
        Made(4_000, lambda index: (_LEAVES, index)), 1, False, lambda batch: int(batch[1])
    ),
}


def _records(options: Options) -> Iterator[dict]:
    """Yield a row per load; it is right if both loaders delivered the same."""
    for name in options.load or LOADS:
        load = LOADS[name]
        with ExitStack() as stack:
            loaders = {
                each: stack.enter_context(closing(_open(kind, load)))
                for each, kind in LOADERS.items()
            }
            drawn = [_drawn(loader, load) for loader in loaders.values()]
            found = in_turns(
                loaders, options.epochs, lambda each, opened=loaders: _timed(opened[each])
            )
        yield {
            "load": name,
            "torch us": middle(found["torch"], "us"),
            "ours us": middle(found["ours"], "us"),
            "times torch": ratio(found["torch"], found["ours"], "us"),
            "correct": drawn[0] == drawn[1],
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


def _drawn(loader: Any, load: Load) -> list[int]:
    """Run an epoch that is looked at and not timed."""
    torch.manual_seed(5)  # of which the order is drawn
    return [load.index_of(batch) for batch in loader]


def _timed(loader: Any) -> dict[str, float]:
    count, before = 0, time.process_time()
    for _ in loader:
        count += 1
    return {"us": 1e6 * (time.process_time() - before) / count}


QUESTION = Question(_records, {"load": several(LOADS), "epochs": number(5, "that are timed")})
