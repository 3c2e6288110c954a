"""
What a batch costs the training process: its CPU time, where workers do next to nothing.

    python -m bench trainer
    python -m bench trainer --load shuffled --epochs 9

Loads: `tiny` is a batch of one (8,) float32 and an int; `shuffled` and `sequential` draw 256
indices of a million and deliver one int, so that drawing is what is left; `leaves` has 60 tensors
to wrap. One worker, which is always ahead; CPU time of the process, all its threads.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from bench.driver import in_turns, middle, ratio
from bench.loaders import LOADERS, opened
from bench.loads import Indices, Made
from bench.question import Options, Question, number, several

_ROW = torch.arange(8, dtype=torch.float32)
_LEAVES = {f"leaf {number}": torch.zeros(4) + number for number in range(60)}
_MILLION = {"dataset": Indices(256 * 4_000, most=1), "batch_size": 256}
LOADS: dict[str, dict[str, Any]] = {
    "tiny": {"dataset": Made(10_000, lambda index: (_ROW, index))},
    "shuffled": {**_MILLION, "shuffle": True},
    "sequential": _MILLION,
    "leaves": {"dataset": Made(4_000, lambda index: (_LEAVES, index))},
}
_AHEAD = {"num_workers": 1, "prefetch_factor": 8, "persistent_workers": True}


def _records(options: Options) -> Iterator[dict]:
    """Yield a row per load; it is right if both loaders delivered the same."""
    for name in options.load or LOADS:
        with ExitStack() as stack:
            loaders = {
                each: stack.enter_context(opened(each, **LOADS[name], **_AHEAD)) for each in LOADERS
            }
            drawn = [_drawn(loader) for loader in loaders.values()]
            timed = {each: partial(_timed, loader) for each, loader in loaders.items()}
            found = in_turns(timed, options.epochs, lambda each, runs=timed: runs[each]())
        yield {
            "load": name,
            "torch us": middle(found["torch"], "us"),
            "ours us": middle(found["ours"], "us"),
            "times torch": ratio(found["torch"], found["ours"], "us"),
            "correct": drawn[0] == drawn[1],
        }


def _drawn(loader: Any) -> list[int]:
    """Run an epoch that is looked at and not timed: the index for which each batch stands."""
    torch.manual_seed(5)  # of which the order is drawn
    return [int(batch[1] if isinstance(batch, list) else batch) for batch in loader]


def _timed(loader: Any) -> dict[str, float]:
    count, before = 0, time.process_time()
    for _ in loader:
        count += 1
    return {"us": 1e6 * (time.process_time() - before) / count}


QUESTION = Question(_records, {"load": several(LOADS), "epochs": number(5, "that are timed")})
