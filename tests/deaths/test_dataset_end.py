"""A worker lets go of its dataset at its end, as the worker of the newest torch does."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import shmloader

STARTED_ANEW = {"multiprocessing_context": "spawn", "num_workers": 1}  # nothing is inherited


class Reporting(Dataset):
    """Samples (3,) int64; its end adds a line to a file: process, worker info."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index)

    def __del__(self) -> None:
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {get_worker_info()}\n")


class ReportingStream(IterableDataset):
    """The samples of a dataset that reports its end."""

    def __init__(self, file: Path) -> None:
        self.samples = Reporting(file)

    def __iter__(self) -> Any:
        return map(self.samples.__getitem__, range(12))


KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "map-style": (Reporting, {}),
    "iterable": (ReportingStream, {}),
    "seeded by batch": (Reporting, {"seed_by": "batch"}),
    "by threads": (Reporting, {"fetch_threads": 2}),
}


def ends_in_workers(file: Path) -> list[str]:
    """List the worker infos of the ends that workers have reported."""
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [info for pid, info in lines if int(pid) != os.getpid()]


def iterate(loader: Any, batches: int | None) -> None:
    """Take some batches, or all, and end the worker."""
    for _ in itertools.islice(loader, batches):
        pass


@pytest.mark.core(every=2)
@pytest.mark.parametrize(("kind", "batches"), [*zip(KINDS, [None, 1, 1, None], strict=True)])
def test_dataset_ends_with_its_worker(tmp_path, kind, batches):
    """A worker deletes its dataset before it ends, and has no worker info then."""
    dataset, options = KINDS[kind]
    file = tmp_path / "ends"
    iterate(shmloader.DataLoader(dataset(file), 2, **STARTED_ANEW, **options), batches)

    assert ["None"] == ends_in_workers(file)
