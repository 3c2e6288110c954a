"""
JPEGs that are decoded once: the speed of later epochs, and memory by workers.

    python -m bench caching
    python -m bench caching --pictures 512

Every row runs in a process of its own; bench/README.md says what is compared.
"""

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import torch

from bench.driver import alone, children, middle
from bench.loaders import LOADERS, opened
from bench.loads import jpegs
from bench.loads.jpegs import DISTINCT, PICTURE_BYTES
from bench.question import Options, Question, number
from bench.usage import all_mb
from shmloader import cached

_NAMES = {
    "decoded": "decoded each time",
    "cached": "`cached()`",
    "anew": "`cached()`, workers anew",
    "kept": "a dict in each worker",
}
_SPEED = [(loader, name) for loader in LOADERS for name in ("decoded", "cached")]
_SPEED += [("ours", "anew")]
_RECORD_BYTES = PICTURE_BYTES + 256  # with what describes it


def run(loader: str, dataset: str, count: int, workers: int = 2) -> dict:
    """Run the epochs over a dataset of _NAMES, and one in which all of each picture is compared."""
    pictures = (jpegs.kept_by_each if dataset == "kept" else jpegs.pictures)(count)
    if dataset in ("cached", "anew"):
        pictures = cached(pictures, int(1.1 * count * _RECORD_BYTES))
    options = {"num_workers": workers, "persistent_workers": dataset != "anew", "shuffle": True}
    order = torch.Generator().manual_seed(1)
    seconds, corners = [], []
    with opened(loader, pictures, 64, generator=order, **options) as loaded:
        for _ in range(4):
            begin = time.perf_counter()
            # A little of each picture is compared, when the time is taken.
            corners.append([(_corners(batch).clone(), index.clone()) for batch, index in loaded])
            seconds.append(time.perf_counter() - begin)
        held_mb, right = all_mb(), jpegs.decoded_jpegs()
        correct = all(_is_right(epoch, count, right) for epoch in corners) and all(
            torch.equal(batch, right[index % DISTINCT]) for batch, index in loaded
        )
    figures = {"first_s": seconds[0], "later_s": median(seconds[1:]), "all_mb": held_mb}
    return {**figures, "correct": correct}


def _corners(pictures: torch.Tensor) -> torch.Tensor:
    return pictures[:, ::32, ::32]


def _is_right(epoch: list[tuple], count: int, right: torch.Tensor) -> bool:
    """Returns True if an epoch had each picture once, as it is."""
    numbers = [number for _, index in epoch for number in index.tolist()]
    return sorted(numbers) == list(range(count)) and all(
        torch.equal(part, _corners(right[index % DISTINCT])) for part, index in epoch
    )


def _speed(options: Options) -> Iterator[dict]:
    rows = {way: partial(run, *way, options.pictures) for way in _SPEED}
    for (loader, name), own in children(rows, options.rounds).items():
        yield {
            "loader": loader,
            "dataset": _NAMES[name],
            "first epoch, s": middle(own, "first_s"),
            "later ones, s": middle(own, "later_s"),
            "correct": all(run["correct"] for run in own),
        }


def _memory(options: Options) -> Iterator[dict]:
    for workers in (2, 8):
        plain_mb = None
        for name in ("decoded", "kept", "cached"):
            ran = alone(partial(run, "ours", name, options.pictures, workers))
            plain_mb = plain_mb or ran["all_mb"]
            yield {
                "workers": workers,
                "dataset": _NAMES[name],
                "all processes, MB": ran["all_mb"],
                "beside decoding each time, MB": ran["all_mb"] - plain_mb,
                "correct": ran["correct"],
            }


QUESTION = Question(
    {"speed": _speed, "memory": _memory},
    {
        "pictures": number(2048, "of 500 × 375"),
        "rounds": number(3, "runs of each row of the first table"),
    },
)
