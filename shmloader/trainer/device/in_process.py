"""Batches on a device without workers: at once, one copy of each plain tensor."""

import functools
from collections.abc import Callable
from typing import Any

from shmloader.options.record import Options
from shmloader.trainer.device.choosing import backend_for
from shmloader.trainer.device.transforming import transformed
from shmloader.trainer.device.walk import moved


def way_to_device(options: Options) -> Callable[[Any], Any] | None:
    """
    Return what brings a batch to the device of a loader without workers; None if there is none.

    Raises:
        ValueError: There is no such device.
    """
    if options.device is None:
        return None
    transform = options.device.transform
    if not options.device.copies:
        return transform and functools.partial(transformed, transform=transform)
    device = backend_for(options.device.name).device

    def bring(batch: Any) -> Any:
        there = moved(batch, lambda leaf: leaf.to(device))
        return there if transform is None else transformed(there, transform)

    return bring
