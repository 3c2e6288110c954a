"""A small convolutional network that learns which photograph a tile is of, every step timed."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.demo.moving import digest_batch
from examples.demo.photographs import PHOTOGRAPHS
from shmloader.cli.run.epochs import Took


class Step(NamedTuple):
    """One step: the trainer waits for a batch, then trains on it."""

    wait_s: float
    train_s: float
    loss: float
    correct: float  # share of the batch
    digest: str


class Training:
    """One loader, the network that it feeds, and the steps so far, by epoch."""

    def __init__(self, name: str, loader: DataLoader[Any], seed: int) -> None:
        torch.manual_seed(seed)
        self.name, self.loader = name, loader
        self.epochs: list[list[Step]] = []
        self.took = Took()
        self._network = _network(len(PHOTOGRAPHS))
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=2e-3)

    def run_epoch(self) -> list[Step]:
        """
        Train for one more epoch, and return its steps.

        iter() is part of the first step's wait. Each batch is hashed between waiting and training,
        off every clock but the processor's.
        """
        steps: list[Step] = []
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        for images, labels in self.loader:
            wait_s = time.perf_counter() - begin_s
            digest = digest_batch([images, labels])
            begin_s = time.perf_counter()
            loss, correct = self.learn(images, labels)
            train_s = time.perf_counter() - begin_s
            steps.append(Step(wait_s, train_s, loss, correct, digest))
            del images, labels
            begin_s = time.perf_counter()
        waited_s = sum(step.wait_s for step in steps)
        self.took += Took(1, len(steps), waited_s, time.process_time() - cpu_s)
        self.epochs.append(steps)
        return steps

    def learn(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
        """
        Take one step of gradient descent.

        Args:
            images: (B, 3, H, W) float32.
            labels: (B,) int64.

        Returns:
            The loss, and the share of correct answers.
        """
        scores = self._network(images)
        loss = nn.functional.cross_entropy(scores, labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item(), (scores.argmax(1) == labels).float().mean().item()

    @property
    def steps(self) -> list[Step]:
        """Every step, in order."""
        return [step for epoch in self.epochs for step in epoch]

    @property
    def epoch_times_s(self) -> list[float]:
        """Seconds of each epoch, waiting and training together."""
        return [sum(step.wait_s + step.train_s for step in epoch) for epoch in self.epochs]

    @property
    def waiting_share(self) -> float:
        """Share of the time that the trainer waited for data."""
        return self.took.waited_s / sum(self.epoch_times_s)


def _network(classes: int) -> nn.Module:
    """Make a network of three convolutions: images (B, 3, H, W) float32 to scores (B, classes)."""
    return nn.Sequential(
        *_convolution(3, 16, stride=4),
        *_convolution(16, 32, stride=2),
        *_convolution(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def _convolution(channels_in: int, channels_out: int, stride: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels_in, channels_out, 5, stride=stride, padding=2, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )
