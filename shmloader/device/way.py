"""The way of batches to a device, whose copies start before the trainer asks for them."""

import math
from collections.abc import Callable
from typing import Any

from shmloader.core import Ledger, Lent
from shmloader.device.choosing import backend_for
from shmloader.device.copies import Copies, Flight
from shmloader.device.registry import Registry
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import is_guarded
from shmloader.options.record import Device
from shmloader.transport.received import Answer, Received
from shmloader.way_out import Failure, WayOut

_LOOK_S = 0.001  # how long is parked at most while copies may end and free a slot


def copies_to(
    device: Device, ledger: Ledger, pool: SegmentPool, *, lock_bytes: int | None, in_order: bool
) -> Copies:
    """
    Prepare the copies of an iterator.

    Args:
        lock_bytes: How much of each slot is page-locked; None: as the batches need.
        in_order: torch's option of that name.
    """
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


class DeviceWay(WayOut):
    """Delivers batches on a device."""

    def __init__(self, received: Received, drain: Callable[[], bool], copies: Copies) -> None:
        """Have answers lent; `drain` receives all that are there, True if there is news."""
        received.lends = True
        self._received = received
        self._drain = drain
        self._copies = copies

    def look(self) -> None:
        """End what is done; as `Copies.look`."""
        self._copies.look()

    def waiting(self) -> float:
        """End copies that are done, start others. Returns seconds to park, 0 if there is news."""
        copies = self._copies
        before = copies.in_flight
        copies.poll()
        has_landed = copies.in_flight < before
        if self._start_ahead() or has_landed:
            return 0.0
        return _LOOK_S if copies.in_flight else math.inf

    def deliver(self, answer: Answer) -> Any:
        """Hand out a batch on the device, or what went wrong with it or an earlier one."""
        answer.batch = self._received.deliver(answer)
        self._start(answer)
        # Behind the copies of the batch in hand.
        self._start_ahead()
        batch, answer.batch = answer.batch, None
        try:
            return self._copies.hand_out(batch) if isinstance(batch, Flight) else batch
        except Exception as error:
            return Failure(error)

    def _start_ahead(self) -> bool:
        """Start copies before torch asks for them. Returns True if there is news to take."""
        if self._left() <= 0:
            return False
        has_news = self._drain()
        waiting = self._received.in_slots()
        if self._copies.in_order:
            waiting.sort(key=lambda answer: answer.ticket)
        for answer in waiting[: max(0, self._left())]:
            self._received.lend(answer)
            self._start(answer)
        return has_news

    def _left(self) -> int:
        return self._copies.ahead - self._received.taken_out

    def _start(self, answer: Answer) -> None:
        """Start the copies of a batch that is lent to them, unless that was done."""
        if isinstance(answer.batch, Lent):
            self._copies.start(answer)

    def rest(self) -> None:
        """Wait for all copies and unregister all slots; as `Copies.rest`."""
        self._copies.rest()

    def end_epoch(self) -> None:
        """Raise the error of a copy whose batch was handed out; as `Copies.end_epoch`."""
        self._copies.end_epoch()

    def close(self) -> bool:
        """Wait for all copies and unregister all slots. Returns True if that worked."""
        return self._copies.close()
