"""Delivery of batches to a device, whose copies start before the trainer asks for them."""

from typing import Any

from shmloader.core import Answer, Lent
from shmloader.device.backend import backend_for
from shmloader.device.copies import Copies, Flight
from shmloader.memory.segment_pool import SegmentPool
from shmloader.options.options import Device
from shmloader.pinning.host_delivery import LockedDelivery
from shmloader.transport.delivery import Failure
from shmloader.transport.transport import Transport


class DeviceDelivery(LockedDelivery):
    """Delivers batches on a device."""

    def __init__(
        self, device: Device, transport: Transport, pool: SegmentPool, *, in_order: bool
    ) -> None:
        """
        Have nothing on its way.

        Args:
            in_order: torch's option of that name; False: copies start as batches come.
        """
        backend = backend_for(device.name)
        super().__init__(transport, pool, can_lock=backend.reads_slots)
        self._received, self._drain = transport.received, transport.drain_ahead
        self._received.lends = True
        self._copies = Copies(backend, pool.copying, device.transform)
        self._backend = backend
        self._ahead = device.prefetch
        self._in_order = in_order

    def look(self) -> None:
        """
        Free the slots whose copies are done, as every such delivery.

        Raises:
            RuntimeError: The current stream records a graph: nothing may be started.
        """
        if self._backend.is_capturing():
            raise RuntimeError(
                "next() was called while a graph is captured, during which batches cannot be "
                "copied: call next() before the capture, and copy the batch into the graph's own "
                "input"
            )
        super().look()

    def waiting(self) -> float:
        """Start copies, and free the slots whose copies end. Returns seconds to park."""
        parks_s = super().waiting()
        return 0.0 if self._start_ahead() else parks_s

    def deliver(self, answer: Answer) -> Any:
        """Hand out a batch on the device, or what went wrong with it."""
        with self._copies.timed():
            answer.batch = self._received.deliver(answer)
        self._start(answer)
        # Behind the copies of the batch in hand.
        self._start_ahead(in_hand=1)
        flight = answer.batch
        if isinstance(flight, Flight):
            try:
                self._copies.hand_out(flight, answer)
            except BaseException as error:
                if error is not flight.error and not isinstance(error, Exception):
                    raise
                answer.batch = Failure(error)
        return answer.batch

    def _start_ahead(self, in_hand: int = 0) -> bool:
        """Start copies before torch asks for them. Returns True if there is news to take."""
        left = self._ahead - self._received.taken_out + in_hand
        if left <= 0:
            return False
        has_news = self._drain()
        left = self._ahead - self._received.taken_out + in_hand
        waiting = self._received.in_slots()
        if self._in_order:
            waiting.sort(key=lambda answer: answer.ticket)
        for answer in waiting[: max(0, left)]:
            with self._copies.timed():  # slots are locked there
                self._received.lend(answer)
            self._start(answer)
        return has_news

    def _start(self, answer: Answer) -> None:
        """Start the copies of a batch that is lent to them, unless that was done."""
        if isinstance(answer.batch, Lent):
            self._copies.start(answer)
