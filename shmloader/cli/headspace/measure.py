"""
The same step, first with its loader and then with batches that are held: two rates, one program.

Both are measured in rounds of about equal time, after a warm-up that is not counted: the first
steps compile and allocate, and the batches that workers fetched meanwhile come for free. An epoch
that ends in mid-round is followed by the next one, whose start counts, as it does in a training.
No batch is held beyond its step while the loader is timed, because held ones cost slots. No worker
fetches while held batches are replayed: the processor is the step's alone, as if data cost nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import torch

import shmloader
from shmloader.cli.command import CommandError

ROUNDS = 5  # of each kind
_HELD = 4  # batches that are replayed
_WARM_STEPS_MIN = 5


class Round(NamedTuple):
    """What happened in one round: its steps, its time, and the part of it in next()."""

    steps: int
    wall_s: float
    next_s: float


class Headspace(NamedTuple):
    """The rounds with the loader, and those with held batches; none of these without a step."""

    loaded: list[Round]
    free: list[Round]


def measure(
    loader: Iterable[Any], step: Callable[[Any], object] | None, seconds: float
) -> Headspace:
    """
    Run the step with the loader, then with held batches.

    Args:
        loader: Any torch DataLoader; it is closed.
        step: What is done with a batch; None: nothing, and nothing is replayed.
        seconds: About how long both take together; a step or a batch is never cut short.
    """
    phase_s = seconds / 2 if step else seconds
    batches = _Endless(loader)
    run = step or (lambda batch: None)
    _warm_up(batches, run, _warm_steps(loader), phase_s / 3)
    loaded = [_round(batches, run, phase_s * 2 / 3 / ROUNDS) for _ in range(ROUNDS)]
    held = [next(batches) for _ in range(_HELD if step else 0)]
    batches.close()
    if not held:
        return Headspace(loaded, [])
    again = cycle(held)
    _warm_up(again, run, _WARM_STEPS_MIN, phase_s / 3)
    free = [_round(again, run, phase_s * 2 / 3 / ROUNDS) for _ in range(ROUNDS)]
    return Headspace(loaded, free)


class _Endless(Iterator[Any]):
    """The batches of a loader, epoch after epoch."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._epoch = iter(loader)

    def __next__(self) -> Any:
        batch = next(self._epoch, self)
        if batch is self:
            self._epoch = iter(self._loader)
            batch = next(self._epoch, self)
        if batch is self:
            raise CommandError("the loader delivered no batch, so nothing can be measured")
        return batch

    def close(self) -> None:
        """End the epoch, and the workers unless they are torch's persistent ones, which idle."""
        self._epoch = iter(())
        with contextlib.suppress(TypeError):  # it is no loader, and holds none
            shmloader.close(self._loader)


def _warm_steps(loader: Any) -> int:
    """Count the batches that may be ready before the step asks for one, and some more."""
    ahead = getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", None) or 0)
    return max(_WARM_STEPS_MIN, int(ahead) + 2)


def _warm_up(
    batches: Iterator[Any], step: Callable[[Any], object], steps: int, longest_s: float
) -> None:
    deadline = time.monotonic() + longest_s
    for _ in range(steps):
        step(next(batches))
        if time.monotonic() > deadline:
            break
    _synchronize()


def _round(batches: Iterator[Any], step: Callable[[Any], object], seconds: float) -> Round:
    begin = now = time.perf_counter()
    steps, next_s = 0, 0.0
    while steps == 0 or now - begin < seconds:
        asked = now
        batch = next(batches)
        next_s += time.perf_counter() - asked
        step(batch)
        steps += 1
        now = time.perf_counter()
    _synchronize()
    return Round(steps, time.perf_counter() - begin, next_s)


def _synchronize() -> None:
    """Wait for what steps have queued on an accelerator, if the step began to use one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
