"""A small convolutional network trained on photographs, every step measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from shmloader.cli.comparison.clocks import read_clocks
from shmloader.cli.comparison.contenders import Contender
from shmloader.cli.comparison.digest import digest_batch
from shmloader.cli.demo.photographs import CROP_PIXELS, PHOTOGRAPHS, PhotographTiles, Sample
from shmloader.cli.demo.sizes import Sizes


@dataclass(frozen=True)
class Step:
    """One step: the trainer waits for a batch, then trains on it."""

    wait_s: float
    train_s: float
    cpu_s: float  # used by the trainer to receive the batch
    faults: int  # page faults of the trainer to receive the batch and to read it once
    loss: float
    correct: float  # share of the batch
    digest: str

    @property
    def spent_s(self) -> float:
        """Seconds from one step to the next."""
        return self.wait_s + self.train_s


class Training:
    """One contender's loader, the network that it feeds, and the steps so far by epoch."""

    def __init__(
        self, contender: Contender, dataset: PhotographTiles, sizes: Sizes, **options: Any
    ) -> None:
        self.name = contender.name
        self.loader = contender.loader_class(
            dataset,
            batch_size=sizes.batch_size,
            shuffle=True,
            num_workers=sizes.workers,
            persistent_workers=True,
            # Its own generator: the other contender's epochs in between must not shift this one's.
            generator=torch.Generator().manual_seed(sizes.seed),
            **options,
        )
        torch.manual_seed(sizes.seed)
        self.trainee = Trainee()
        self.epochs: list[list[Step]] = []

    def run_epoch(self, advance: Callable[[], None]) -> list[Step]:
        """
        Train for one more epoch.

        Args:
            advance: Called after each step, off the clock.

        Returns:
            The epoch's steps.
        """
        self.epochs.append([])
        for step in measured_steps(self.loader, self.trainee):
            self.epochs[-1].append(step)
            advance()
        return self.epochs[-1]

    def stop(self) -> None:
        """End the workers and keep the measurements."""
        del self.loader

    @property
    def steps(self) -> list[Step]:
        """Every step, in order."""
        return [step for epoch in self.epochs for step in epoch]

    @property
    def epoch_times_s(self) -> list[float]:
        """Seconds of each epoch, waiting and training together."""
        return [sum(step.spent_s for step in epoch) for epoch in self.epochs]

    @property
    def epoch_s(self) -> float:
        """Seconds per epoch: the median."""
        return median(self.epoch_times_s)

    @property
    def edge_s(self) -> float:
        """Seconds of waiting at the first step of an epoch that has one before it: the median."""
        return median(epoch[0].wait_s for epoch in self.epochs[1:])

    @property
    def waiting_share(self) -> float:
        """Share of the time that the trainer waited for data."""
        return sum(step.wait_s for step in self.steps) / sum(self.epoch_times_s)


def measured_steps(loader: DataLoader[Sample], trainee: Trainee) -> Iterator[Step]:
    """
    Train for one epoch.

    The time to make the iterator is part of the first step's wait. Each batch is hashed between
    waiting and training: no clock counts these few milliseconds, but the workers of either
    contender may use them.
    """
    started = read_clocks()
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        receiving = read_clocks() - started
        digest = digest_batch(batch)
        reading = read_clocks() - started
        loss, correct, train_s = trainee.learn(*batch)
        yield Step(
            receiving.wall_s, train_s, receiving.cpu_s, reading.faults, loss, correct, digest
        )
        started = read_clocks()


class Trainee:
    """A network and its optimizer."""

    def __init__(self) -> None:
        self.network = small_network(len(PHOTOGRAPHS))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3)

    def learn(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, float]:
        """
        Take one step of gradient descent.

        Args:
            images: (B, 3, H, W) float32.
            labels: (B,) int64.

        Returns:
            The loss, the share of correct answers, and the seconds that it took.
        """
        started = read_clocks()
        scores = self.network(images)
        loss = nn.functional.cross_entropy(scores, labels)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)  # loss.backward() has no types
        self.optimizer.step()
        correct = (scores.argmax(1) == labels).float().mean().item()
        return loss.item(), correct, (read_clocks() - started).wall_s


def small_network(classes: int) -> nn.Module:
    """Make a network of three convolutions: images (B, 3, H, W) float32 to scores (B, classes)."""
    return nn.Sequential(
        *convolution(3, 16, stride=4),
        *convolution(16, 32, stride=2),
        *convolution(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def convolution(channels_in: int, channels_out: int, stride: int) -> tuple[nn.Module, ...]:
    """One layer: convolution, batch normalisation, rectifier."""
    return (
        nn.Conv2d(channels_in, channels_out, 5, stride=stride, padding=2, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def warm_up(batch_size: int) -> None:
    """Let torch set up its kernels, so that the first contender does not pay for it."""
    trainee = Trainee()
    for _ in range(2):
        images = torch.rand(batch_size, 3, CROP_PIXELS, CROP_PIXELS)
        trainee.learn(images, torch.zeros(batch_size, dtype=torch.int64))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the same sums in the same order, and cores left to the workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
