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
from bench.loops import play
from bench.measure import per_batch

WORKERS = {"num_workers": 2, "persistent_workers": True}

_SEED = 13
_LOOKS = 12  # how often an epoch stops for a look at memory


@dataclass
class Training:
    """What is trained by plain SGD, on what, and the loss of a batch with the net."""

    loader: Any
    net: torch.nn.Module
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]


def seed() -> None:
    """Start every generator anew, so that two processes draw the same."""
    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.manual_seed(_SEED)


def draws(dataset: Sized, samples: int) -> RandomSampler:
    """Draw so many samples for an epoch; a small dataset is gone through more than once."""
    return RandomSampler(dataset, num_samples=samples)


def train(training: Training, look: Callable[[int], None] | None = None) -> dict:
    """
    Train for an epoch; look: called with each step's number, the batch and gradients still there.

    Returns:
        Every loss; the share of the time, from iter() to the end, in iter() and next(); and per
        step: ms, CPU ms and page faults of trainer and workers.
    """
    optimizer = torch.optim.SGD(training.net.parameters(), lr=0.01)
    losses: list[float] = []

    def step(batch: Any) -> None:
        loss = training.loss(training.net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if look:
            look(len(losses))

    before, begin = usage.totals(), time.perf_counter()
    played = play(training.loader, step)
    wall_s, after = time.perf_counter() - begin, usage.totals()
    wait_s = wall_s - sum(played.steps_s())
    used = per_batch({name: after[name] - before[name] for name in after}, len(losses))
    return {"losses": losses, "ms": 1e3 * wall_s / len(losses), "wait": wait_s / wall_s, **used}


def peak_mb(training: Training, steps: int) -> tuple[list[float], float]:
    """
    Train for an epoch and look at memory a dozen times.

    Returns:
        The losses, and the highest MB of trainer and workers above what they had before it: each
        page once, shared memory that no process maps included.
    """
    looks = [usage.all_mb()]

    def look(step: int) -> None:
        if step % max(1, steps // _LOOKS) == 0:
            looks.append(usage.all_mb())

    losses = train(training, look)["losses"]
    return losses, max(looks) - looks[0]
