"""The ways of a batch to the user: from its slot, pinned, through a function, to a device."""

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import pin_memory as torch_pin_memory

from shmloader.memory.pool import SegmentPool
from shmloader.options.record import Device, Options
from shmloader.trainer.pinning import pin
from shmloader.transport.received import Answer, Received
from shmloader.transport.transport import Transport
from shmloader.way_out import Failure, WayOut, transformed


class PlainWay(WayOut):
    """Delivers batches where they lie."""

    def __init__(self, received: Received) -> None:
        self.deliver = received.deliver


class TransformedWay(PlainWay):
    """Delivers what a function makes of each batch, in host memory."""

    def __init__(self, received: Received, transform: Callable[[Any], Any]) -> None:
        super().__init__(received)
        self.deliver = functools.partial(_through, received, transform)


class PinnedWay(PlainWay):
    """Delivers batches in pinned memory, as torch's loader does."""

    def __init__(self, received: Received, device: str | None, counts: "Counter[str]") -> None:
        """Copy each plain tensor, timed in counts["ns"]; device: torch's `pin_memory_device`."""
        super().__init__(received)
        received.mover = pin
        self.deliver = functools.partial(_pinned, received, device, counts)


def choose(
    options: Options,
    transport: Transport,
    pool: SegmentPool,
    *,
    in_order: bool,
    pins: bool,
    pin_device: str | None,
) -> WayOut:
    """
    Choose how a loader's batches get from their slots to the user.

    Args:
        in_order: torch's option of that name.
        pins: torch's `pin_memory`, if there is a device.
        pin_device: torch's `pin_memory_device`.
    """
    received, device = transport.received, options.device
    if device is not None and device.copies:
        return _to_device(device, transport, pool, options.slot_bytes, in_order=in_order)
    if pins:
        return PinnedWay(received, pin_device, pool.copying)
    if device is not None and device.transform is not None:
        return TransformedWay(received, device.transform)
    return PlainWay(received)


def _to_device(
    device: Device, transport: Transport, pool: SegmentPool, lock_bytes: int | None, in_order: bool
) -> WayOut:
    from shmloader.device.way import DeviceWay, copies_to  # the room may be absent

    copies = copies_to(device, transport.ledger, pool, lock_bytes=lock_bytes, in_order=in_order)
    return DeviceWay(transport.received, transport.drain_ahead, copies)


def _through(received: Received, transform: Callable[[Any], Any], answer: Answer) -> Any:
    batch = received.deliver(answer)
    try:
        return batch if isinstance(batch, ExceptionWrapper) else transformed(batch, transform)
    except Exception as error:
        return Failure(error)


def _pinned(received: Received, device: str | None, counts: "Counter[str]", answer: Answer) -> Any:
    began = time.perf_counter_ns()
    batch = received.deliver(answer)
    if not isinstance(batch, ExceptionWrapper):
        batch = _pinned_by_torch(batch, device)
    counts["ns"] += time.perf_counter_ns() - began
    return batch


def _pinned_by_torch(batch: Any, device: str | None) -> Any:
    """Have torch pin what is not pinned yet: what `pin` could not, and objects of users."""
    try:
        return torch_pin_memory.pin_memory(batch, device)
    except Exception:
        index = torch.accelerator.current_device_index()
        return ExceptionWrapper(where=f"in pin memory thread for device {index}")
