"""Large batches that torch's loader and ours move in turns, and the check that both are equal."""

from __future__ import annotations  # torch's classes may take no parameters

import hashlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

import shmloader
from shmloader.cli.command import CommandError
from shmloader.cli.run.epochs import OURS, TORCHS, Took

CONTENDERS: dict[str, type[DataLoader[Any]]] = {TORCHS: DataLoader, OURS: shmloader.DataLoader}
_SHARED_MEMORY = Path("/dev/shm")
_PREFETCH_FACTOR = 2  # torch's default


@dataclass(frozen=True)
class Load:
    """What is moved: samples of one float32 tensor and an int, and how many of them."""

    shape: tuple[int, ...]
    pool_samples: int  # distinct samples; together larger than the processor's cache
    batch_size: int
    batches: int
    rounds: int
    workers: int

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample: its tensor, and an int64."""
        return torch.Size(self.shape).numel() * torch.float32.itemsize + 8

    @property
    def title(self) -> str:
        """Say what a batch is."""
        megabytes = self.batch_size * self.sample_bytes / 1e6
        return f"{self.batch_size} × {self.shape}, {megabytes:.4g} MB"

    def fitting(self) -> Self:
        """Choose a batch size for which torch's loader has room in /dev/shm."""
        size = fitting_batch_size(self.batch_size, self.sample_bytes, self.workers)
        return replace(self, batch_size=size)


def fitting_batch_size(batch_size: int, sample_bytes: int, workers: int) -> int:
    """
    Halve a batch size until torch's loader finds room for its batches in /dev/shm.

    torch keeps there those in flight, the one that the trainer holds and the one that it receives;
    in a container's 64 MB, batches that are too large end a worker with SIGBUS.
    """
    if not _SHARED_MEMORY.is_dir():
        return batch_size
    room_bytes = shutil.disk_usage(_SHARED_MEMORY).free
    batches = _PREFETCH_FACTOR * workers + 2
    while batch_size > 1 and batches * batch_size * sample_bytes > room_bytes:
        batch_size //= 2
    return batch_size


class _Pool(Dataset):  # type: ignore[type-arg]
    """Samples that are there already: a tensor (*shape) float32, and its index."""

    def __init__(self, load: Load) -> None:
        generator = torch.Generator().manual_seed(load.pool_samples)
        self._pool = torch.rand((load.pool_samples, *load.shape), generator=generator).unbind()
        self._load = load

    def __reduce__(self) -> tuple[type[_Pool], tuple[Load]]:
        # Spawned workers make the pool again: sent as it is, it would need its size in /dev/shm.
        return _Pool, (self._load,)

    def __len__(self) -> int:
        return self._load.batch_size * self._load.batches

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._pool[index % len(self._pool)], index


def move_batches(load: Load, advance: Callable[[], None]) -> dict[str, list[Took]]:
    """
    Move the same batches through both loaders, in turns, and say what each pass took.

    The check before them is not counted, nor the start of workers, nor `advance` after each pass.
    """
    dataset = _Pool(load)
    loaders = {
        name: kind(
            dataset, batch_size=load.batch_size, num_workers=load.workers, persistent_workers=True
        )
        for name, kind in CONTENDERS.items()
    }
    digests = {name: [*map(digest_batch, loader)] for name, loader in loaders.items()}
    check_same_batches(load.title, digests)
    passes: dict[str, list[Took]] = {name: [] for name in loaders}
    for _ in range(load.rounds):
        for name, loader in loaders.items():
            passes[name].append(_pass(loader))
            advance()
    return passes


def _pass(loader: DataLoader[Any]) -> Took:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in loader:
        pass
    waited_s = time.perf_counter() - began_s
    return Took(1, len(loader), waited_s, time.process_time() - cpu_s)


def middle(passes: Sequence[Took]) -> Took:
    """Return the pass of median duration; of an even number, the shorter of the two."""
    return sorted(passes, key=lambda took: took.waited_s)[(len(passes) - 1) // 2]


def check_same_batches(what: str, digests: Mapping[str, Sequence[str]]) -> None:
    """Compare what two loaders delivered, in order, by the digests of each one's batches."""
    (one, expected), (other, actual) = digests.items()
    if len(expected) != len(actual):
        raise CommandError(
            f"{what}: {one} delivered {len(expected)} batches, {other} {len(actual)}"
        )
    for number, pair in enumerate(zip(expected, actual, strict=True), start=1):
        if pair[0] != pair[1]:
            raise CommandError(
                f"{what}: batch {number} of {len(expected)} differs: "
                f"SHA-256 {pair[0][:16]} from {one}, {pair[1][:16]} from {other}"
            )


def digest_batch(batch: Any) -> str:
    """Hash a batch: its containers and plain values, and each dense CPU tensor and array."""
    digest = hashlib.sha256()
    _add(digest, batch)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Feed one value to the hash, after a description that keeps neighbours apart."""
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, numpy.ndarray):
        digest.update(f"array {value.dtype} {value.shape};".encode())
        digest.update(value.tobytes())
    elif isinstance(value, (Mapping, list, tuple)):
        digest.update(f"{type(value).__qualname__} {len(value)};".encode())
        parts = value.items() if isinstance(value, Mapping) else value
        for item in parts:
            _add(digest, item)
    else:
        digest.update(f"{type(value).__qualname__} {value!r};".encode())
