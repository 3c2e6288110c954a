"""A small training whose losses tell each batch, its order and its workers' random draws."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

SEED = 20
COUNT = 96  # samples of an epoch
BATCH = 8
WORKERS = {"batch_size": BATCH, "num_workers": 2}
SHAPE = (3, 16, 16)


def seed() -> None:
    """Start every generator anew, so that two trainings draw the same."""
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def picture(index: int) -> torch.Tensor:
    """Make sample number `index`: (3, 16, 16) float32, augmented with torch's generator."""
    base = torch.full(SHAPE, index / COUNT)
    return base + torch.rand(SHAPE) * 0.1


def label(index: int) -> int:
    return index % 4


class Pictures(Dataset):
    """A map-style dataset; its samples are augmented in the worker that makes them."""

    def __init__(self, count: int = COUNT):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return picture(index), label(index)


class Stream(IterableDataset):
    """The same samples as an iterable dataset; each worker yields its share."""

    def __init__(self, count: int = COUNT):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.count, step):
            yield picture(index), label(index)


class Net(torch.nn.Module):
    """Four classes of the pictures' first pixels: any two different batches differ in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.linear(pictures[:, :, :4, :4].mean(1).flatten(1))

    def loss(self, batch: Any) -> torch.Tensor:
        pictures, labels = batch
        return torch.nn.functional.cross_entropy(self(pictures), labels)


def plain(
    loader: Iterable[Any], epochs: int = 2, net: Any = None, loss_of: Any = None
) -> list[float]:
    """Train a net by hand, or a small one; loss_of(batch): its loss. Returns that of each step."""
    if net is None:
        net = Net()
        loss_of = net.loss
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def signal_job(number: int) -> None:
    """Send a signal to this process and to those that it has forked, as a scheduler does."""
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, number)
    os.kill(os.getpid(), number)


class Stopping(Pictures):
    """The training waits for a sample when it and the worker are told to stop."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__(count)
        self.trainer = os.getpid()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 10:
            time.sleep(0.5)  # until it waits
            for pid in (self.trainer, os.getpid()):
                os.kill(pid, signal.SIGTERM)
        return super().__getitem__(index)
