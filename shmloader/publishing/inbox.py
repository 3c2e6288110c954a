"""
Batches that are copied in: a ring of this process's own, from which they go out as from a loader's.

No worker writes here. The process that owns the ring fills a slot itself, by one copy, and what it
does with a batch reaches nobody else.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch._utils import ExceptionWrapper

from shmloader.core import Posted, Window
from shmloader.errors import OutOfSharedMemory, RetentionWarning, warn
from shmloader.memory import limits, policy, sending
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import shape_of
from shmloader.options.record import Options
from shmloader.trainer import ways_out
from shmloader.trainer.epoch import Start
from shmloader.trainer.tally import Tally
from shmloader.transport.received import Answer
from shmloader.transport.transport import Transport

_RESERVE = 1  # the slot into which the next batch is copied


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
        shape = shape_of(1, 2, options.slots, None, options.ring_bytes, self._ahead)
        self._segment = pool.acquire(shape)
        grows = options.slots is None
        self._transport = Transport(self._segment, _RESERVE, pool, heals=False, grows=grows)
        self._received = self._transport.received
        self._way = ways_out.choose(
            options, self._transport, pool, in_order=True, pins=pins, pin_device=None
        )
        self._tally = Tally(pool, self._transport, list)
        self._ticket = 0

    def begin_epoch(self, length: int | None) -> None:
        """Begin an epoch, and drop what was not asked for of the last one."""
        self._transport.abandon()
        epoch: Any = SimpleNamespace(start=Start.now(), length=length)
        epoch.delivered = SimpleNamespace(count=0)
        self._tally.begin(epoch)

    def end_epoch(self) -> None:
        """End it, as a loader's iterator does."""
        self._tally.end()
        self._way.end_epoch()

    def next(self, copy: Callable[[bool], bool]) -> Any:
        """
        Hand out the next batch, or raise the error in its place.

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
            self._way.look()
            if not by_key:
                copy(True)
            while len(by_key) <= self._ahead and copy(False):
                pass
            answer = next(iter(by_key.values()))
            batch = self._way.deliver(answer)
            if answer.log is not None:
                notes.take_up(answer.log)
            if isinstance(batch, ExceptionWrapper):
                batch.reraise()
        finally:
            notes.returned()
        return batch

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
        if posted in received.by_key:
            return
        if self._transport.figures.ready != len(received.slots()):
            self._transport.abandon(received.by_key)  # an interrupt left a copy that nobody knows
        self._check_room(ledger.lacking(posted.length))
        while (filled := ledger.fill(self._ticket, posted, window)) is None:
            self._way.waiting()  # copies to a device hold the slots for a moment
        slot, kind = filled
        try:
            check()
        except BaseException:
            ledger.discard(slot)
            raise
        received.add(Answer(kind, 0, self._ticket, posted, slot))
        self._ticket += 1

    def _check_room(self, lacking_bytes: int) -> None:
        """Refuse a batch for whose pages there is no room: the kernel would kill without a word."""
        available = limits.available() if lacking_bytes else None
        if available is not None and available.bytes < lacking_bytes + policy.reserve_bytes(1):
            raise OutOfSharedMemory(
                f"{lacking_bytes / 1e6:.1f} MB more are needed for a batch, and "
                f"{available.bytes / 1e6:.1f} MB are left {available.where}: free memory, raise "
                "the limit, or lower batch_size"
            )

    def close(self) -> None:
        """Free it; batches that are held stay valid."""
        if self._received.is_closed:
            return
        self._tally.end()
        self._transport.close()
        if self._way.close():
            self.pool.release(self._segment)
        else:
            self.pool.discard(self._segment)
        self.pool.clear()
