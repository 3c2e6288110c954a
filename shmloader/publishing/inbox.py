"""
Batches that are copied in: a ring of this process's own, from which they go out as from a loader's.

No worker writes here. The process that owns the ring fills a slot itself, by one copy, and what it
does with a batch reaches nobody else.
"""

from collections.abc import Callable
from typing import Any

from torch._utils import ExceptionWrapper

from shmloader.core import Delivered, Kind, Ledger, Posted, Window
from shmloader.errors import BatchTooLarge, OutOfSharedMemory, RetentionWarning, warn
from shmloader.memory import limits, policy, sending
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import Segment, shape_of
from shmloader.options.record import Options
from shmloader.publishing.member import Lease
from shmloader.trainer import ways_out
from shmloader.trainer.epoch import Start
from shmloader.trainer.tally import Tally
from shmloader.transport.received import Answer
from shmloader.transport.transport import Transport

_RESERVE = 1  # the slot into which the next batch is copied


class _Epoch:
    """What a tally asks of an epoch."""

    def __init__(self, length: int | None) -> None:
        self.start = Start.now()
        self.length = length
        self.delivered = Delivered(1, False)


class Inbox:
    """
    A ring of this process's own.

    Attributes:
        pool: Counts what comes through it, as a loader's does.
    """

    def __init__(self, label: str, options: Options, pins: bool = False) -> None:
        """
        Open the ring.

        Args:
            label: What viewers are told.
            options: `slots`, `ring_bytes`, `device` and `keep_pages` count.
            pins: As torch's `pin_memory`.

        Raises:
            OutOfSharedMemory, OSError: There is no room for it.
            ValueError: There is no such device.
        """
        sending.install()
        self.pool = SegmentPool(options.keep_pages)
        self.pool.label = label
        device = options.device
        self._ahead = device.prefetch if device is not None and device.copies else 0
        shape = shape_of(1, 2, options.slots, None, options.ring_bytes, self._ahead)
        self._segment = self.pool.acquire(shape)
        grows = options.slots is None
        transport = Transport(self._segment, _RESERVE, self.pool, heals=False, grows=grows)
        self._transport, self._received = transport, transport.received
        self._way = ways_out.choose(
            options, transport, self.pool, in_order=True, pins=pins, pin_device=None
        )
        self._tally = Tally(self.pool, transport, list)
        self._ticket = 0
        self._window: tuple[Segment, Window] | None = None  # on what this process lends itself

    def begin_epoch(self, length: int | None) -> None:
        """Begin an epoch, and drop what was not asked for of the last one."""
        self._received.forget(())
        self._tally.begin(_Epoch(length))  # type: ignore[arg-type]

    def end_epoch(self) -> None:
        """End it, as a loader's iterator does."""
        self._tally.end()
        self._way.end_epoch()

    def next(self, copy: Callable[[bool], bool]) -> Any:
        """
        Hand out the next batch.

        Args:
            copy: Has one more put in, and waits for it if it is told to. Returns False if none was
                there; raises if none comes.

        Raises:
            Exception: The error in the batch's place, or what `copy` raises.
        """
        notes = self._transport.notes
        notes.ask()
        try:
            if self.pool.advice is not None:
                advice, self.pool.advice = self.pool.advice, None
                warn(advice, RetentionWarning)
            self._way.look()
            if not self._received.by_key:
                copy(True)
            while len(self._received.by_key) <= self._ahead and copy(False):
                pass
            answer = next(iter(self._received.by_key.values()))
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
        Copy a batch in.

        Args:
            window: The file in which it lies.
            check: Raises if the copy may be torn; then it is forgotten.

        Raises:
            BatchTooLarge, OutOfSharedMemory: There is no room for it.
        """
        ledger = self._transport.ledger
        self._recover(ledger)
        self._check_room(posted.length, ledger.lacking(posted.length))
        while (filled := ledger.fill(self._ticket, posted, window)) is None:
            self._way.waiting()  # copies to a device hold the slots for a moment
        slot, kind = filled
        try:
            check()
        except BaseException:
            ledger.discard(slot)
            raise
        self._received.add(Answer(kind, 0, self._ticket, self._ticket, slot))
        self._ticket += 1

    def take(self, lease: Lease) -> None:
        """Copy in what a loader of this process has lent; what is in no slot is a copy already."""
        lent, segment = lease.lent, lease.segment
        if lent.in_slot:
            if self._window is None or self._window[0] is not segment:
                self._window = segment, Window(segment.descriptor)
            self.put(lent.post(0), self._window[1], lambda: None)
            return
        answer = Answer(Kind.BATCH, 0, self._ticket, self._ticket)
        answer.batch = lent.decode(None)
        self._received.add(answer)
        self._ticket += 1

    def _recover(self, ledger: Ledger) -> None:
        """Forget what an interrupt left in a slot: it is to be copied again."""
        known = self._received.slots()
        if self._transport.figures.ready != len(known):
            for news in ledger.ready_slots():
                if news.slot not in known:
                    ledger.discard(news.slot)

    def _check_room(self, length: int, lacking_bytes: int) -> None:
        """Refuse a batch for whose pages there is no room: the kernel would kill without a word."""
        ring_bytes = self._segment.shape.ring_bytes
        if length > ring_bytes:
            raise BatchTooLarge(
                f"a batch of {length / 1e6:.1f} MB does not fit ring_bytes of "
                f"{ring_bytes / 1e6:.1f} MB: free memory for it, or lower batch_size"
            )
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
