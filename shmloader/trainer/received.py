"""
Answers that were received and not delivered yet: what becomes of them.

A batch is made when it is delivered, so that one which arrives early does not count as held. Three
things come before that: memory that an earlier batch needs, copies to a device ahead of the step,
and an interrupt, after which torch may never ask for an answer again.
"""

from collections.abc import Callable, Collection
from typing import Any

from shmloader.core import BatchLog, Ledger, pickling
from shmloader.stats.record import Spill
from shmloader.trainer.budget import Budget
from shmloader.way_out import Failure


class PendingBatch:
    """An answer that was received and not delivered: in its slot, or the batch it spilled to."""

    __slots__ = ("batch", "in_slot", "note", "number", "slot", "snapshot")

    def __init__(self, slot: int, number: int) -> None:
        self.slot = slot
        self.number = number
        self.in_slot = True
        self.batch: Any = None
        self.note: bytes | None = None  # the log's, while it waits outside of its slot
        self.snapshot: bytes | None = None  # the worker's, once it is out of its slot


class Received:
    """
    One iterator's answers between the ring and torch.

    Attributes:
        by_number: The answers by torch's task number.
        lends: True: what is delivered is a `Lent`, from which the way out makes the batch.
        mover: Copies each plain tensor of a batch when it is delivered; None: they are views.
        is_closed: True when the segment may be another iterator's, so that nothing is delivered.
    """

    def __init__(self, ledger: Ledger, budget: Budget, notes: BatchLog) -> None:
        self.by_number: dict[int, PendingBatch] = {}
        self.lends = False
        self.mover: Callable[[Any], Any] | None = None
        self.is_closed = False
        self._ledger = ledger
        self._budget = budget
        self._notes = notes

    def add(self, slot: int, number: int) -> PendingBatch:
        """Keep an answer in its slot until torch asks for it."""
        self.by_number[number] = pending = PendingBatch(slot, number)
        return pending

    def clear(self) -> None:
        """Forget all answers; their slots are the caller's."""
        self.by_number.clear()

    def slots(self) -> set[int]:
        """Collect the slots of the answers that are in theirs."""
        return {pending.slot for pending in self.in_slots()}

    def in_slots(self) -> list[PendingBatch]:
        """List the answers that are in their slots, in the order in which they came."""
        return [pending for pending in self.by_number.values() if pending.in_slot]

    @property
    def taken_out(self) -> int:
        """Number of answers that are not in their slots any more, and not delivered."""
        return sum(not pending.in_slot for pending in self.by_number.values())

    def forget(self, expected: Collection[int]) -> bool:
        """
        Free what was received of tasks that torch does not expect any more.

        An interrupt hit torch between taking them from its record and delivering them.

        Returns:
            True if there were any.
        """
        lost = [number for number in self.by_number if number not in expected]
        for number in lost:
            pending = self.by_number.pop(number)
            if pending.in_slot:
                self._ledger.discard(pending.slot)
        return bool(lost)

    def deliver(self, pending: PendingBatch) -> Any:
        """
        Turn an answer into its batch, or into an error in its place.

        If the log's note of it was put aside, the caller takes that up.

        The batch's tensors and arrays are views of the slot, unless so many slots are held that
        the workers would run out of them: then it is copied out and the slot is free at once.
        If the way out has answers lent, it is a `Lent`, or what that way made of it ahead.
        """
        if self.is_closed:
            return Failure(RuntimeError("the loader was closed before this batch was delivered"))
        try:
            if pending.in_slot:
                self._decode(pending, self._reason(pending.slot))
        finally:
            del self.by_number[pending.number]
        batch, pending.batch = pending.batch, None
        return batch

    def lend(self, pending: PendingBatch) -> None:
        """Take an answer out of its slot ahead: its `batch` is a `Lent` then, or an error."""
        self._decode(pending, self._reason(pending.slot))

    def _decode(self, pending: PendingBatch, reason: Spill | None) -> None:
        pending.in_slot = False
        if self._ledger.follows:
            pending.snapshot = self._ledger.snapshot_of(pending.slot)
        try:
            spill = 0 if reason is None else reason.number
            if self.lends:
                self._ledger.lend(pending.slot, spill, pending)
                # The slot is the way's, not the user's: the log is not to find it held.
                pending.note = self._notes.put_aside()
            else:
                pending.batch = self._ledger.deliver(
                    pending.slot, spill, pickling.Unpickler, self.mover
                )
        except Exception as error:
            pending.batch = Failure(error)
        if reason is not None:
            self._budget.note_spill(reason)

    def _reason(self, slot: int) -> Spill | None:
        """Why a batch that is delivered now must be copied out first."""
        if self.lends or self.mover is not None:
            return self._budget.reason_to_copy_out(slot)
        return self._budget.reason_to_spill(slot)

    def spill_until(self, fits: Callable[[], bool]) -> None:
        """Copy answers out of their slots until there is room for an earlier batch."""
        for pending in list(self.by_number.values()):
            if fits():
                return
            if pending.in_slot:
                self._decode(pending, Spill.FOR_AN_EARLIER_BATCH)
                pending.note = self._notes.put_aside()
