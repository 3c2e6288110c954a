"""The ways of a batch to the user: from its slot, pinned, through a function, to a device."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import pin_memory as torch_pin_memory

from shmloader.core import Ledger
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import is_guarded
from shmloader.options.record import Device, Options
from shmloader.trainer.device.choosing import backend_for
from shmloader.trainer.device.copies import Copies, Flight
from shmloader.trainer.device.pin import pin
from shmloader.trainer.device.registry import Registry
from shmloader.trainer.device.transforming import transformed
from shmloader.trainer.received import Failure, PendingBatch, Received
from shmloader.trainer.transport import Transport

Deliver = Callable[[PendingBatch], Any]


def choose(
    options: Options,
    transport: Transport,
    pool: SegmentPool,
    *,
    in_order: bool,
    pins: bool,
    pin_device: str | None,
) -> tuple[Deliver, Copies | None]:
    """
    Choose how a loader's batches get from their slots to the user.

    Args:
        in_order: torch's option of that name.
        pins: torch's `pin_memory`, if there is a device.
        pin_device: torch's `pin_memory_device`.

    Returns:
        What delivers an answer, and what copies to the device; None if batches stay on the host.
    """
    received, device = transport.received, options.device
    if device is not None and device.copies:
        lock_bytes = options.slot_bytes
        copies = _copies_to(device, transport.ledger, pool, lock_bytes, in_order=in_order)
        return to_device(received, copies, transport.start_ahead), copies
    if pins:
        return pinned(received, pin_device, pool.copying), None
    if device is not None and device.transform is not None:
        return through(received, device.transform), None
    return received.deliver, None


def _copies_to(
    device: Device, ledger: Ledger, pool: SegmentPool, lock_bytes: int | None, in_order: bool
) -> Copies:
    backend = backend_for(device.name)
    registry = Registry(
        ledger, backend, pool.name, lock_bytes=lock_bytes, may_lock=not is_guarded()
    )
    return Copies(
        backend,
        registry,
        pool.copying,
        ahead=device.prefetch,
        in_order=in_order,
        transform=device.transform,
    )


def to_device(received: Received, copies: Copies, start_ahead: Callable[[], None]) -> Deliver:
    """
    Deliver batches on a device.

    Args:
        start_ahead: Starts the copies of later batches, after those of the one in hand.
    """
    received.copies = copies

    def deliver(pending: PendingBatch) -> Any:
        batch = received.deliver(pending)
        start_ahead()
        try:
            return copies.hand_out(batch) if isinstance(batch, Flight) else batch
        except Exception as error:
            return Failure(error)

    return deliver


def through(received: Received, transform: Callable[[Any], Any]) -> Deliver:
    """Deliver what a function makes of each batch."""

    def deliver(pending: PendingBatch) -> Any:
        batch = received.deliver(pending)
        try:
            return batch if isinstance(batch, ExceptionWrapper) else transformed(batch, transform)
        except Exception as error:
            return Failure(error)

    return deliver


def pinned(received: Received, device: str | None, counts: "Counter[str]") -> Deliver:
    """
    Deliver batches in pinned memory, as torch's loader does.

    Args:
        device: torch's `pin_memory_device`.
        counts: Its `ns` are the nanoseconds that it takes.
    """
    received.mover = pin

    def deliver(pending: PendingBatch) -> Any:
        began = time.perf_counter_ns()
        batch = received.deliver(pending)
        if not isinstance(batch, ExceptionWrapper):
            batch = _pinned_by_torch(batch, device)
        counts["ns"] += time.perf_counter_ns() - began
        return batch

    return deliver


def _pinned_by_torch(batch: Any, device: str | None) -> Any:
    """Have torch pin what is not pinned yet: what `pin` could not, and objects of users."""
    try:
        return torch_pin_memory.pin_memory(batch, device)
    except Exception:
        index = torch.accelerator.current_device_index()
        return ExceptionWrapper(where=f"in pin memory thread for device {index}")
