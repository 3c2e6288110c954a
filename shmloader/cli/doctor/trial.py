"""The last check: a loader that runs."""

from __future__ import annotations

import time
import warnings

import torch
from torch.utils.data import Dataset

import shmloader
from shmloader.cli.doctor.finding import Finding

WORKERS = 2
_SAMPLES, _SAMPLE_NUMBERS, _BATCH_SIZE = 64, 1024, 4
_TIMEOUT_S = 60.0  # for a batch; a start by spawn on a busy machine takes seconds


class Counting(Dataset):  # type: ignore[type-arg]
    """Samples that say which they are."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((_SAMPLE_NUMBERS,), index)


def trial(dataset: Dataset[torch.Tensor] | None = None) -> Finding:
    """Iterate a small loader with two workers, and compare each number of its batches."""
    begin = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of fewer cores than workers
            right, first_s, spilled = _iterate(dataset or Counting(), begin)
    except Exception as error:
        last = str(error).strip().splitlines()[-1:] or ["no text"]
        remedy = "see the error for what to change; the checks above may show why"
        return Finding("a loader", "problem", f"{type(error).__name__}: {last[0]}", remedy)
    batches = _SAMPLES // _BATCH_SIZE
    fact = f"{right} of {batches} batches of {WORKERS} workers were right, {spilled} were copied"
    fact += f"; the first came after {first_s:.2f} s"
    if right < batches:
        remedy = (
            "do not use shmloader here, and report this with the output of `shmloader doctor "
            "--json`"
        )
        return Finding("a loader", "problem", fact, remedy)
    return Finding("a loader", "ok", fact)


def _iterate(dataset: Dataset[torch.Tensor], begin: float) -> tuple[int, float, int]:
    """Count the right batches, the seconds from begin to the first, and the spilled ones."""
    expected = torch.arange(_SAMPLES).repeat_interleave(_SAMPLE_NUMBERS)
    wanted = expected.reshape(-1, _BATCH_SIZE, _SAMPLE_NUMBERS)
    right, first_s = 0, 0.0
    options = {"batch_size": _BATCH_SIZE, "num_workers": WORKERS, "timeout": _TIMEOUT_S}
    with shmloader.DataLoader(dataset, **options) as loader:  # type: ignore[arg-type]
        for batch, right_one in zip(loader, wanted, strict=True):
            first_s = first_s or time.monotonic() - begin
            right += torch.equal(batch, right_one)
        return right, first_s, loader.stats().spilled
