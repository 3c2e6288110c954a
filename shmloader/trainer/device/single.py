"""Batches on a device without workers: torch's own path, and one copy of each plain tensor."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from shmloader.trainer.device.backend import backend_for
from shmloader.trainer.device.walk import moved
from shmloader.trainer.options import CPU, Options
from shmloader.trainer.single import SeededSingleIterator


class _Moving:
    """Moves what its other base fetches: at once, and behind the current stream's work."""

    _device: torch.device | None
    _transform: Callable[[Any], Any] | None

    @classmethod
    def moving_to(cls, options: Options, loader: Any) -> Self:
        """Begin an epoch of a loader with a device."""
        # Before torch draws a seed for it: a device that is not there costs nothing.
        device = None if options.device == CPU else backend_for(options.device).device
        made = cls(loader)  # type: ignore[call-arg]
        made._device = device
        made._transform = options.device_transform
        return made

    def _next_data(self) -> Any:
        batch = super()._next_data()  # type: ignore[misc]
        if self._device is not None:
            batch = moved(batch, lambda leaf: leaf.to(self._device))
        return batch if self._transform is None else self._transform(batch)


class MovingIterator(_Moving, _SingleProcessDataLoaderIter):
    """torch's iterator for `num_workers=0`, with its batches on a device."""


class SeededMovingIterator(_Moving, SeededSingleIterator):
    """The same, with draws that depend on the batch alone."""
