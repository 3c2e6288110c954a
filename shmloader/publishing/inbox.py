"""
Batches that are copied in: a ring of this process's own, from which they go out as from a loader's.

No worker writes here. The process that owns the ring fills a slot itself, by one copy, and what it
does with a batch reaches nobody else.
"""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch._utils import ExceptionWrapper

from shmloader.core import Answer, InHand, Posted, Window, poll
from shmloader.errors import OutOfSharedMemory, RetentionWarning, warn
from shmloader.memory import policy, sending
from shmloader.memory.limits import Headroom
from shmloader.memory.segment import shape_of
from shmloader.memory.segment_pool import SegmentPool
from shmloader.options.options import Options
from shmloader.processes.watching import wait_until
from shmloader.trainer import deliveries
from shmloader.trainer.epoch import Start
from shmloader.trainer.tally import Tally
from shmloader.transport.delivery import error_in
from shmloader.transport.transport import Transport

_RESERVE = 1  # the slot into which the next batch is copied
_RESERVE_BYTES = policy.reserve_bytes(1)


class Inbox:
    """
    A ring of this process's own.

    Attributes:
        pool: Counts what comes through it, as a loader's does.
    """

    def __init__(self, label: str, options: Options, pins: bool = False) -> None:
        """Open the ring, which has a label for viewers; pins: as torch's `pin_memory`."""
        sending.install()
        self.pool = pool = SegmentPool(options.keep_pages)
        pool.label = label
        device = options.device
        self._ahead = device.prefetch if device is not None and device.copies else 0
        copied_ahead = policy.FENCED_AHEAD_SLOTS if pins else self._ahead
        shape = shape_of(1, 2, options.slots, None, options.ring_bytes, copied_ahead, remedy="")
        self._segment = pool.acquire(shape)
        grows = options.slots is None
        self._transport = Transport(self._segment, _RESERVE, pool, heals=False, grows=grows)
        self._received = self._transport.received
        self._delivery = deliveries.choose(
            options, self._transport, pool, in_order=True, pins=pins, pin_device=None
        )
        self._tally = Tally(pool, self._transport, list)
        self._headroom = Headroom()
        self._ticket = 0
        self._in_hand: Posted | None = None  # whose batch is handed out, or was the last

    def begin_epoch(self, length: int | None) -> None:
        """Begin an epoch, and drop what was not asked for of the last one."""
        self._transport.abandon()
        epoch: Any = SimpleNamespace(start=Start.now(), length=length)
        epoch.delivered = SimpleNamespace(count=0)
        self._tally.begin(epoch)

    def end_epoch(self) -> None:
        """End it, as a loader's iterator does."""
        self._tally.end()

    def next(self, copy: Callable[[bool], bool]) -> InHand:
        """
        Have the next batch in hand, or the error in its place; the same until it is handed out.

        Args:
            copy: Has one more put in, and waits for it if it is told to. Returns False if none was
                there; raises if none comes.
        """
        notes, by_key = self._transport.notes, self._received.by_key
        notes.ask()
        try:
            if self.pool.advice is not None:
                advice, self.pool.advice = self.pool.advice, None
                warn(advice, RetentionWarning)
            self._delivery.look()
            if not by_key:
                copy(True)
            while len(by_key) <= self._ahead and copy(False):
                pass
            answer = next(iter(by_key.values()))
            self._in_hand = answer.key
            hand = InHand(self._delivery.deliver(answer), by_key, answer.key)
            if answer.log is not None:
                notes.take_up(answer.log)
            if isinstance(hand.batch, ExceptionWrapper):
                hand.error = error_in(hand.batch)
        finally:
            notes.returned()
        return hand

    def note_wait(self, seconds: float) -> None:
        """Count a wait for the next batch."""
        self._transport.ledger.note_wait(int(1e9 * seconds))

    def put(self, posted: Posted, window: Window, check: Callable[[], None]) -> None:
        """
        Copy a batch in, unless that was done and an interrupt came then.

        Args:
            window: The file in which it lies.
            check: Raises if the copy may be torn; then it is forgotten.
        """
        received, ledger = self._received, self._transport.ledger
        if posted in received.by_key or posted is self._in_hand:
            return
        if self._transport.ledger.ready != len(received.slots()):
            self._transport.abandon(received.by_key)  # an interrupt left a copy that nobody knows
        self._make_room(posted.length, check)
        while (filled := ledger.fill(self._ticket, posted, window)) is None:
            check()
            if self._delivery.waiting() > 0:  # copies to a device hold the slots for a moment
                poll((), policy.FENCE_LOOK_S)
        slot, kind = filled
        try:
            check()
        except BaseException:
            ledger.discard(slot)
            raise
        received.by_key[posted] = Answer(kind, 0, self._ticket, posted, slot)
        self._ticket += 1

    def _make_room(self, length: int, check: Callable[[], None]) -> None:
        """
        See that there is room for a batch's pages: the kernel would kill without a word.

        As for a worker's batch, pages that wait for later ones go first, and there is patience.
        """
        if self._has_room(length):
            return
        self._transport.budget.make_room()
        until = time.monotonic() + policy.SHORTAGE_S
        while not self._has_room(length):
            check()
            if time.monotonic() > until:
                lacking_mb = self._transport.ledger.lacking(length) / 1e6
                raise OutOfSharedMemory(
                    f"a batch of {length / 1e6:.1f} MB lacks {lacking_mb:.1f} MB of shared memory "
                    f"in this process, but {self._headroom.left()}, {_RESERVE_BYTES / 1e6:.1f} MB "
                    "of them in reserve for what it makes of batches: retain fewer batches, lower "
                    "batch_size, or raise the memory limit"
                )
            wait_until(lambda: False, policy.LOOK_AGAIN_NS / 1e9)

    def _has_room(self, length: int) -> bool:
        lacking_bytes = self._transport.ledger.lacking(length)
        return lacking_bytes == 0 or self._headroom.has(lacking_bytes, _RESERVE_BYTES)

    def close(self) -> None:
        """Free it; batches that are held stay valid."""
        if self._received.is_closed:
            return
        self._tally.end()
        self._transport.close()
        self.pool.release(self._segment)
        self.pool.clear()
