"""
JPEGs that are decoded once: the speed of later epochs, and memory by workers.

    python -m bench caching
    python -m bench caching --quick

Two tables: epochs with and without `cached()`, with both loaders in turns; and the memory of all
processes with 2 and 8 workers. Every row runs in a process of its own; a part of each picture is
compared in every epoch, and all of it in one more.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import torch

from bench.driver import alone, children, middle
from bench.loaders import LOADERS
from bench.loads import jpegs
from bench.loads.jpegs import DISTINCT, PICTURE_BYTES
from bench.question import Options, Question, number, quick
from bench.usage import resources
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


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        loader: "ours" or "torch".
        dataset: "decoded" each time, "cached", "kept" by each worker, or "anew": cached, and
            workers are started for each epoch.
    """

    loader: str
    dataset: str
    pictures: int
    workers: int = 2


def run(row: Row) -> dict:
    """Run the epochs, and one more in which all of each picture is compared."""
    dataset = (jpegs.kept_by_each if row.dataset == "kept" else jpegs.pictures)(row.pictures)
    if row.dataset in ("cached", "anew"):
        dataset = cached(dataset, int(1.1 * row.pictures * _RECORD_BYTES))
    loader = LOADERS[row.loader](
        dataset,
        batch_size=64,
        num_workers=row.workers,
        persistent_workers=row.dataset != "anew",
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    seconds, corners = [], []
    with closing(loader):
        for _ in range(4):
            begin = time.perf_counter()
            # A little of each picture is compared, when the time is taken.
            corners.append([(_corners(batch).clone(), index.clone()) for batch, index in loader])
            seconds.append(time.perf_counter() - begin)
        memory = resources()
        right = jpegs.decoded_jpegs()
        correct = all(_is_right(epoch, row.pictures, right) for epoch in corners) and all(
            torch.equal(batch, right[index % DISTINCT]) for batch, index in loader
        )
    return {
        "first_s": seconds[0],
        "later_s": median(seconds[1:]),
        "all_mb": memory["shared_mb"] + memory["private_mb"],
        "correct": correct,
    }


def _corners(pictures: torch.Tensor) -> torch.Tensor:
    return pictures[:, ::32, ::32]


def _is_right(epoch: list[tuple], count: int, right: torch.Tensor) -> bool:
    """Returns True if an epoch had each picture once, as it is."""
    numbers = [number for _, index in epoch for number in index.tolist()]
    return sorted(numbers) == list(range(count)) and all(
        torch.equal(part, _corners(right[index % DISTINCT])) for part, index in epoch
    )


def _speed(options: Options) -> Iterator[dict]:
    rows = {way: Row(*way, options.pictures) for way in _SPEED}
    for (loader, name), own in children(rows, options.rounds).items():
        later_s = middle(own, "later_s")
        yield {
            "loader": loader,
            "dataset": _NAMES[name],
            "first epoch, s": middle(own, "first_s"),
            "later ones, s": later_s,
            "later: pictures/s": options.pictures / later_s,
            "correct": all(run["correct"] for run in own),
        }


def _memory(options: Options) -> Iterator[dict]:
    for workers in (2, 8):
        plain_mb = None
        for name in ("decoded", "kept", "cached"):
            run = alone(Row("ours", name, options.pictures, workers))
            plain_mb = plain_mb or run["all_mb"]
            yield {
                "workers": workers,
                "dataset": _NAMES[name],
                "all processes, MB": run["all_mb"],
                "beside decoding each time, MB": run["all_mb"] - plain_mb,
                "correct": run["correct"],
            }


QUESTION = Question(
    {
        "speed": _speed,
        "memory": _memory,
    },
    {
        "pictures": number(2048, "of 500 × 375"),
        "rounds": number(3, "runs of each row of the first table"),
        "quick": quick("pictures", 512, "512 pictures"),
    },
)
