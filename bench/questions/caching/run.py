"""
One row: the epochs of a loader, in a process of its own.

    python -m bench.questions.caching '{"dataset": "decoded", "loader": "ours", ...}'

prints a JSON line: seconds of each epoch, memory at the end, what the cache says, and whether every
batch was right.
"""

import contextlib
import json
import time
import warnings
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader as TorchLoader

from bench.questions.caching.pictures import (
    DISTINCT,
    PICTURE_BYTES,
    Copied,
    Decoded,
    KeptByEach,
)
from bench.usage import resources
from shmloader import DataLoader, cached

_BATCH = 64
_RECORD_BYTES = PICTURE_BYTES + 256  # with what describes it
_DATASETS = {"decoded": Decoded, "cached": Decoded, "kept": KeptByEach, "copied": Copied}


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
    epochs: int
    fits: float = 1.1
    persistent: bool = True


def main(text: str) -> None:
    """Run what a command says."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    torch.set_num_threads(1)
    row = Row(**json.loads(text))
    dataset = _DATASETS[row.dataset](row.pictures)
    if row.dataset == "cached":
        max_bytes = int(row.fits * row.pictures * _RECORD_BYTES) + 8 * row.pictures + (16 << 10)
        dataset = cached(dataset, max_bytes)
    kind = DataLoader if row.loader == "ours" else TorchLoader
    loader = kind(
        dataset,
        batch_size=_BATCH,
        num_workers=row.workers,
        persistent_workers=row.persistent,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    hits, seconds, corners = [], [], []
    for _ in range(row.epochs):
        begin = time.perf_counter()
        corners.append([_corners(*batch) for batch in loader])
        seconds.append(time.perf_counter() - begin)
        if row.dataset == "cached":
            hits.append(dataset.cache_stats().hits)
    memory = resources()
    is_right = all(_is_right(*each) for epoch in corners for each in epoch)
    is_right = is_right and all(
        sorted(index for _, indices in epoch for index in indices.tolist())
        == list(range(row.pictures))
        for epoch in corners
    )
    is_right = is_right and all(_is_whole(*batch) for batch in loader)
    found = {"seconds": seconds, "memory": memory, "hits": hits, "correct": is_right}
    if row.dataset == "cached":
        stats = dataset.cache_stats()
        found |= {"entries": stats.entries, "bytes": stats.bytes, "max_bytes": stats.max_bytes}
    with contextlib.suppress(AttributeError):
        loader.close()
    print(json.dumps(found))


def _corners(pictures: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a little of each picture, to be compared when the time is taken."""
    return pictures[:, ::32, ::32].clone(), indices.clone()


def _right() -> torch.Tensor:
    if not _distinct:
        decoded = Decoded(DISTINCT)
        _distinct.append(torch.stack([decoded[number][0] for number in range(DISTINCT)]))
    return _distinct[0]


_distinct: list[torch.Tensor] = []


def _is_right(corners: torch.Tensor, indices: torch.Tensor) -> bool:
    return torch.equal(corners, _right()[indices % DISTINCT][:, ::32, ::32])


def _is_whole(pictures: torch.Tensor, indices: torch.Tensor) -> bool:
    return torch.equal(pictures, _right()[indices % DISTINCT])
