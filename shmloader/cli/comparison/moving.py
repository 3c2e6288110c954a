"""Batches that cost nothing to fetch, so that only collating and moving them is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch
from torch.utils.data import DataLoader, Dataset

from shmloader.cli.comparison.clocks import Clocks, read_clocks
from shmloader.cli.comparison.contenders import CONTENDERS, Contender
from shmloader.cli.comparison.digest import digest_batch

Sample = tuple[torch.Tensor, int]


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
        """Size of a sample's tensor."""
        return torch.Size(self.shape).numel() * torch.float32.itemsize


class SamplePool(Dataset[Sample]):
    """
    Ready-made samples from a pool.

    A sample is a tensor (*shape) float32 and its index, an int.
    """

    def __init__(self, load: Load) -> None:
        generator = torch.Generator().manual_seed(load.pool_samples)
        self.pool = torch.rand((load.pool_samples, *load.shape), generator=generator).unbind()
        self.samples = load.batch_size * load.batches
        self.load = load

    def __reduce__(self) -> tuple[type[SamplePool], tuple[Load]]:
        # Spawned workers make the pool again: sent as it is, it would need its size in /dev/shm.
        return SamplePool, (self.load,)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        return self.pool[index % len(self.pool)], index


@dataclass
class Transfer:
    """What one contender's rounds over the same large batches cost."""

    name: str
    batch_bytes: int
    batches: int
    digests: list[str]
    faults: int  # page faults of the trainer to receive every batch and read it once
    rounds: list[Clocks] = field(default_factory=list)

    @property
    def batch_times_s(self) -> list[float]:
        """Seconds per batch, one value for each round."""
        return [spent.wall_s / self.batches for spent in self.rounds]

    @property
    def batch_cpus_s(self) -> list[float]:
        """Seconds of CPU that the trainer uses per batch, one value for each round."""
        return [spent.cpu_s / self.batches for spent in self.rounds]

    @property
    def batch_s(self) -> float:
        """Seconds per batch: the median of the rounds."""
        return median(self.batch_times_s)

    @property
    def batch_cpu_s(self) -> float:
        """Seconds of CPU that the trainer uses per batch: the median of the rounds."""
        return median(self.batch_cpus_s)


def move_batches(load: Load, advance: Callable[[], None]) -> list[Transfer]:
    """
    Move the same batches through each contender's loader, in turns.

    Args:
        load: What is moved, how often, and by how many workers.
        advance: Called after each pass, off the clock.

    Returns:
        One record for each contender.
    """
    dataset = SamplePool(load)
    loaders = [loader_of(contender, dataset, load) for contender in CONTENDERS]
    transfers = []
    for contender, loader in zip(CONTENDERS, loaders, strict=True):
        transfers.append(checked_pass(contender.name, loader))
        advance()
    for _ in range(load.rounds):
        for transfer, loader in zip(transfers, loaders, strict=True):
            transfer.rounds.append(timed_pass(loader))
            advance()
    return transfers


def loader_of(contender: Contender, dataset: SamplePool, load: Load) -> DataLoader[Sample]:
    """One contender's loader; its workers stay for every pass."""
    return contender.loader_class(
        dataset,
        batch_size=load.batch_size,
        num_workers=load.workers,
        persistent_workers=True,
    )


def checked_pass(name: str, loader: DataLoader[Sample]) -> Transfer:
    """
    Receive and hash every batch off the clock, and count the page faults.

    An earlier pass reads every batch too, so that memory that stays mapped costs no fault here.
    """
    for batch in loader:
        digest_batch(batch)
    started = read_clocks()
    digests = []
    for batch in loader:
        digests.append(digest_batch(batch))
        batch_bytes = sum(leaf.nbytes for leaf in batch)
    faults = (read_clocks() - started).faults
    return Transfer(name, batch_bytes, len(digests), digests, faults)


def timed_pass(loader: DataLoader[Sample]) -> Clocks:
    """Receive every batch and drop it."""
    started = read_clocks()
    for _ in loader:
        pass
    return read_clocks() - started
