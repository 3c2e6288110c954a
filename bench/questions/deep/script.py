"""
The second script of the way without a loader: it keeps a folder in memory full of batches.

    python -m bench.questions.deep.script '{"folder": ..., "batches": ..., "most": ..., ...}'

Every poll_s seconds it reads which batch the training has reached, deletes those before it, and, if
fewer than four fifths of `most` are left, makes more. It ends behind the last batch.
"""

import json
import sys
import time
from multiprocessing.pool import Pool
from pathlib import Path

import torch
from torch.utils.data import Dataset, default_collate

from bench.loads.images import crops

BATCH = 64
_REFILL = 0.8  # of the most
_WORKERS = 2


def batch_of(dataset: Dataset, number: int) -> list[torch.Tensor]:
    """Make a batch of the epoch in order."""
    return default_collate(
        [dataset[index] for index in range(number * BATCH, (number + 1) * BATCH)]
    )


def path_of(folder: Path, number: int) -> Path:
    """The file of a batch."""
    return folder / f"{number}.pt"


def place_in(folder: Path) -> Path:
    """The file in which the training writes the number of the batch that it has reached."""
    return folder / "place.txt"


def keep_full(folder: Path, batches: int, most: int, poll_s: float) -> None:
    """Delete what was used and make what comes, until the last batch is made."""
    first = made = 0
    with Pool(_WORKERS, _prepare, (batches, str(folder))) as pool:
        while made < batches:
            reached = _reached(folder)
            while first < reached:
                path_of(folder, first).unlink(missing_ok=True)
                first += 1
            if made - reached < _REFILL * most:
                up_to = min(batches, reached + most)
                pool.map(_make, range(made, up_to), chunksize=1)
                made = up_to
            time.sleep(poll_s)


def _reached(folder: Path) -> int:
    text = place_in(folder).read_text() if place_in(folder).exists() else ""
    return int(text or 0)


def _prepare(batches: int, folder: str) -> None:
    global _dataset, _folder
    torch.set_num_threads(1)
    _dataset, _folder = crops(batches * BATCH), Path(folder)


def _make(number: int) -> None:
    path = path_of(_folder, number)
    torch.save(batch_of(_dataset, number), path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    keep_full(Path(spec.pop("folder")), **spec)
