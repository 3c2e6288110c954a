"""The ways of using a loader that a soak goes through, and their batches in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import torch

from tests.helpers.mortal import Init, Mortal, MortalStream, Remembering, Script

BATCH_SIZE = 6
_CALM = Script("")  # the killer decides where workers die
_NOISE = 225_000  # float32 of a batch: 0.9 MB
_COLLATE_S = 0.03
# An epoch of 22 batches; the shares of three workers of an iterable dataset end unevenly.
_SAMPLES, _SAMPLES_EACH = 128, 40
_LEFT_EVERY = 3  # one epoch of so many is left in its middle
_LEFT_AFTER = 10  # batches, about half of an epoch


@dataclass(frozen=True)
class Phase:
    """
    One way of using a loader.

    Args:
        name: What the command line calls it.
        share: Its part of all batches.
        kind: Of the dataset, which draws from all three random generators.
        persistent: If True, the workers live for all epochs; otherwise for one each.
        window: How many batches the trainer keeps while it goes on.
        timeout_s: The loader's timeout; workers are also stopped if it is set, for it to find.
    """

    name: str
    share: float
    kind: Callable
    persistent: bool = True
    window: int = 0
    timeout_s: float = 0.0

    @property
    def is_iterable(self) -> bool:
        """True if the dataset is an iterable one, which no sampler shuffles."""
        return issubclass(self.kind, torch.utils.data.IterableDataset)


PHASES = (
    Phase("renewed", 0.3, Mortal, persistent=False),
    Phase("persistent", 0.3, Mortal, window=5),
    Phase("replayed", 0.15, MortalStream),
    Phase("restored", 0.15, Remembering),
    Phase("hanging", 0.1, Mortal, timeout_s=1.0),
)


def collate(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Collate with a draw, and take as long as a few photographs would."""
    time.sleep(_COLLATE_S)
    return {"samples": torch.stack(samples), "noise": torch.rand(_NOISE)}


def make_loader(phase: Phase, loader_class: type, workers: int, seed: int, **options):
    """Make a loader that delivers the same batches whenever the seed is the same."""
    return loader_class(
        phase.kind(_CALM, _SAMPLES_EACH if phase.is_iterable else _SAMPLES),
        batch_size=BATCH_SIZE,
        shuffle=None if phase.is_iterable else True,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=Init(_CALM),
        generator=torch.Generator().manual_seed(seed),
        multiprocessing_context="fork",  # the killer recognizes workers by their parent
        persistent_workers=phase.persistent,
        **options,
    )


def draw(loader, batches: int) -> Iterator:
    """Yield so many batches, epoch after epoch; every third epoch is left in its middle."""
    left = batches
    for epoch in count(1):
        longest = _LEFT_AFTER if epoch % _LEFT_EVERY == 0 else left
        for batch in islice(loader, min(left, longest)):
            left -= 1
            yield batch
            # Or this generator would keep a batch that the trainer has dropped.
            del batch
        if not left:
            return
