"""The ways of using a loader that a soak goes through, and their batches in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import torch

from tests.deaths.soak import pictures

_LEFT_EVERY = 3  # one epoch of so many is left in its middle
_LEFT_AFTER = 10  # batches, about half of an epoch


@dataclass(frozen=True)
class Phase:
    """
    One way of using a loader.

    Args:
        name: What the command line calls it.
        share: Its part of all batches.
        make_dataset: Makes the dataset.
        persistent: If True, the workers live for all epochs; otherwise for one each.
        window: How many batches the trainer keeps while it goes on.
        timeout_s: The loader's timeout; workers are also stopped if it is set, for it to find.
    """

    name: str
    share: float
    make_dataset: Callable
    persistent: bool = True
    window: int = 0
    timeout_s: float = 0.0

    @property
    def is_iterable(self) -> bool:
        """True if the dataset is an iterable one, which no sampler shuffles."""
        return issubclass(self.make_dataset, torch.utils.data.IterableDataset)


PHASES = (
    Phase("renewed", 0.3, pictures.Pictures, persistent=False),
    Phase("persistent", 0.3, pictures.Pictures, window=5),
    Phase("replayed", 0.15, pictures.Replayed),
    Phase("restored", 0.15, pictures.Restored),
    Phase("hanging", 0.1, pictures.Pictures, timeout_s=1.0),
)


def make_loader(phase: Phase, loader_class: type, workers: int, seed: int, **options):
    """Make a loader that delivers the same batches whenever the seed is the same."""
    return loader_class(
        phase.make_dataset(),
        batch_size=pictures.BATCH_SIZE,
        shuffle=None if phase.is_iterable else True,
        num_workers=workers,
        collate_fn=pictures.collate,
        worker_init_fn=pictures.prepare,
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
