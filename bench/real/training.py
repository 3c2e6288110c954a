"""A training, its epochs by the clock, and its memory."""

import random
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import RandomSampler

from bench import usage

WORKERS = {"num_workers": 2, "persistent_workers": True}

_SEED = 13
_USED = ("trainer_cpu_s", "worker_cpu_s", "trainer_minor_faults", "worker_minor_faults")
_LOOKS = 12  # how often an epoch stops for a look at memory
_NO_MORE = object()


@dataclass
class Training:
    """
    What is trained, and on what.

    Args:
        loader: Gives the batches of an epoch.
        net: Is trained by plain SGD.
        loss: Computes the loss of a batch with the net.
    """

    loader: Any
    net: torch.nn.Module
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]


@dataclass
class Epoch:
    """One epoch, from iter() to its end: seconds, CPU seconds, page faults, and every loss."""

    wall_s: float
    wait_s: float  # in iter() and next()
    trainer_cpu_s: float
    worker_cpu_s: float
    trainer_minor_faults: float
    worker_minor_faults: float
    losses: list[float]


def seed() -> None:
    """Start every generator anew, so that two processes draw the same."""
    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.manual_seed(_SEED)


def draws(dataset: Sized, samples: int) -> RandomSampler:
    """Draw so many samples for an epoch; a small dataset is gone through more than once."""
    return RandomSampler(dataset, num_samples=samples)


def train(training: Training, look: Callable[[int], None] | None = None) -> Epoch:
    """
    Train for an epoch.

    Args:
        look: Called after each step with its number, with the batch and its gradients still there.
    """
    optimizer = torch.optim.SGD(training.net.parameters(), lr=0.01)
    losses: list[float] = []
    before, begin = usage.totals(), time.perf_counter()
    batches = iter(training.loader)
    wait_s = time.perf_counter() - begin
    while True:
        asked = time.perf_counter()
        batch = next(batches, _NO_MORE)
        wait_s += time.perf_counter() - asked
        if batch is _NO_MORE:
            break
        loss = training.loss(training.net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if look:
            look(len(losses))
    wall_s, after = time.perf_counter() - begin, usage.totals()
    used = {name: after[name] - before[name] for name in _USED}
    return Epoch(wall_s, wait_s, **used, losses=losses)


def watch(training: Training, steps: int) -> tuple[Epoch, float]:
    """
    Train for an epoch and look at memory a dozen times.

    Returns:
        The epoch, whose times mean nothing, and the highest MB of trainer and workers above what
        they had before it: each page once, shared memory that no process maps included.
    """
    before, highest = _memory_mb(), 0.0

    def look(step: int) -> None:
        nonlocal highest
        if step % max(1, steps // _LOOKS) == 0:
            highest = max(highest, _memory_mb())

    epoch = train(training, look)
    return epoch, highest - before


def _memory_mb() -> float:
    held = usage.resources()
    return held["shared_mb"] + held["private_mb"]
