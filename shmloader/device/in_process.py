"""Batches on a device without workers: at once, one copy of each plain tensor."""

from collections.abc import Callable
from typing import Any

from shmloader.device.backend import backend_for
from shmloader.device.walk import moved
from shmloader.options.options import Device
from shmloader.transport.delivery import transformed


def bringing_to(wanted: Device) -> Callable[[Any], Any]:
    """Return what brings a batch to the device of a loader without workers."""
    device, transform = backend_for(wanted.name).device, wanted.transform

    def bring(batch: Any) -> Any:
        there = moved(batch, lambda leaf: leaf.to(device))
        return there if transform is None else transformed(there, transform)

    return bring
