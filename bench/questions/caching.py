"""
JPEGs that are decoded once: the speed of later epochs, memory by workers, and if not all fits.

    python -m bench caching
    python -m bench caching --quick

Three tables: epochs beside torch and beside plain copies from one tensor, which are the bound; the
memory of all processes with 2, 4 and 8 workers; and what is found if a part of the data fits. Every
row runs in a process of its own; a part of each picture is compared in every epoch, and all of it
in one more.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from bench.driver import alone, in_turns
from bench.loaders import LOADERS
from bench.loads import jpegs
from bench.loads.jpegs import DISTINCT, PICTURE_BYTES
from bench.usage import resources
from shmloader import cached

_SPEED = {
    "loader": "loader",
    "dataset": "dataset",
    "first epoch, s": "first_s",
    "later ones, s": "later_s",
    "later: pictures/s": "rate",
    "of the bound": "share",
    "correct": "correct",
}
_MEMORY = {
    "workers": "workers",
    "dataset": "dataset",
    "all processes, MB": "all_mb",
    "beside decoding each time, MB": "more_mb",
    "of the pictures": "share",
    "correct": "correct",
}
_FITS = {
    "has room for": "fits",
    "keeps": "kept",
    "hits in later epochs": "hits",
    "later ones, s": "later_s",
    "correct": "correct",
}
_NAMES = {
    "decoded": "decoded each time",
    "cached": "`cached()`",
    "kept": "a dict in each worker",
    "copied": "copied from one tensor: the bound",
}
_ANEW = "anew"  # `cached()` in workers that are started for each epoch
_DATASETS = {
    "decoded": jpegs.pictures,
    "cached": jpegs.pictures,
    "kept": jpegs.kept_by_each,
    "copied": jpegs.copied,
}
_RECORD_BYTES = PICTURE_BYTES + 256  # with what describes it


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        dataset: "decoded" each time, "cached", "kept" by each worker, or "copied".
        loader: "ours" or "torch".
        fits: The part of the pictures for which the cache has room.
        persistent: Workers live on between epochs.
    """

    dataset: str
    loader: str
    workers: int
    pictures: int
    fits: float = 1.1
    persistent: bool = True


def run(row: Row) -> dict:
    """Run the epochs, and one more in which all of each picture is compared."""
    dataset = _DATASETS[row.dataset](row.pictures)
    if row.dataset == "cached":
        max_bytes = int(row.fits * row.pictures * _RECORD_BYTES) + 8 * row.pictures + (16 << 10)
        dataset = cached(dataset, max_bytes)
    loader = LOADERS[row.loader](
        dataset,
        batch_size=64,
        num_workers=row.workers,
        persistent_workers=row.persistent,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    found: dict[str, Any] = {"hits": [], "seconds": []}
    corners = []
    with closing(loader):
        for _ in range(4):
            begin = time.perf_counter()
            # A little of each picture is compared, when the time is taken.
            corners.append([(_corners(batch).clone(), index.clone()) for batch, index in loader])
            found["seconds"].append(time.perf_counter() - begin)
            if row.dataset == "cached":
                found["hits"].append(dataset.cache_stats().hits)
        found["memory"] = resources()
        right = jpegs.decoded_jpegs()
        found["correct"] = all(_is_right(epoch, row.pictures, right) for epoch in corners) and all(
            torch.equal(batch, right[index % DISTINCT]) for batch, index in loader
        )
        if row.dataset == "cached":
            found["entries"] = dataset.cache_stats().entries
    return found


def _corners(pictures: torch.Tensor) -> torch.Tensor:
    return pictures[:, ::32, ::32]


def _is_right(epoch: list[tuple], count: int, right: torch.Tensor) -> bool:
    """Returns True if an epoch had each picture once, as it is."""
    numbers = [number for _, index in epoch for number in index.tolist()]
    return sorted(numbers) == list(range(count)) and all(
        torch.equal(part, _corners(right[index % DISTINCT])) for part, index in epoch
    )


def _run(options: argparse.Namespace, dataset: str, loader: str = "ours", **row: Any) -> dict:
    found, _ = alone(Row(dataset, loader, **{"workers": 2, "pictures": options.pictures, **row}))
    return {**found, "later_s": median(found["seconds"][1:])}


def _speed(options: argparse.Namespace) -> Iterator[dict]:
    cases = [(loader, name) for loader in LOADERS for name in ("decoded", "cached", "copied")]
    runs = in_turns(
        [*cases, ("ours", _ANEW)],
        options.rounds,
        lambda case: _run(
            options, "cached" if case[1] == _ANEW else case[1], case[0], persistent=case[1] != _ANEW
        ),
    )
    later = {
        case: median(second for run in own for second in run["seconds"][1:])
        for case, own in runs.items()
    }
    for (loader, name), own in runs.items():
        yield {
            "loader": "torch" if loader == "torch" else "shmloader",
            "dataset": _NAMES.get(name, f"{_NAMES['cached']}, workers anew"),
            "first_s": median(run["seconds"][0] for run in own),
            "later_s": later[loader, name],
            "rate": options.pictures / later[loader, name],
            "share": later[loader, "copied"] / later[loader, name],
            "correct": all(run["correct"] for run in own),
            "runs": own,
        }


def _memory(options: argparse.Namespace) -> Iterator[dict]:
    for workers in (2, 4, 8):
        plain_mb = None
        for name in ("decoded", "kept", "cached"):
            run = _run(options, name, workers=workers)
            all_mb = run["memory"]["shared_mb"] + run["memory"]["private_mb"]
            plain_mb = all_mb if plain_mb is None else plain_mb
            yield {
                **run,
                "workers": workers,
                "dataset": _NAMES[name],
                "all_mb": all_mb,
                "more_mb": all_mb - plain_mb,
                "share": (all_mb - plain_mb) * 1e6 / (options.pictures * PICTURE_BYTES),
            }


def _fits(options: argparse.Namespace) -> Iterator[dict]:
    for fits in (0.25, 0.5, 0.75, 1.0, 1.1):
        run = _run(options, "cached", fits=fits)
        hits = (run["hits"][-1] - run["hits"][0]) / (len(run["hits"]) - 1)
        kept = run["entries"] / options.pictures
        yield {**run, "fits": fits, "kept": kept, "hits": hits / options.pictures}


PARTS = {"speed": (_SPEED, _speed), "memory": (_MEMORY, _memory), "fits": (_FITS, _fits)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--pictures", type=int, default=2048, help="of 500 × 375")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row of the first table")
    quick = {"dest": "pictures", "action": "store_const", "const": 512}
    parser.add_argument("--quick", help="512 pictures", **quick)
