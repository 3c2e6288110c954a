"""
Answers that were received and not delivered yet: what becomes of them.

A batch is made when it is delivered, so that one which arrives early does not count as held. Three
things come before that: memory that an earlier batch needs, copies to a device ahead of the step,
and an interrupt, after which the client may never ask for an answer again. An interrupt may come
behind that too, so an answer stays here until its client has what became of it, and drops it.
"""

from collections.abc import Callable, Collection
from typing import Any

from shmloader.core import Answer, BatchLog, Ledger
from shmloader.memory.page_locks import PageLocks
from shmloader.stats.records import Spill
from shmloader.transport.budget import FOR_ROOM, Budget
from shmloader.transport.delivery import Failure


class Received:
    """The batches, and errors in their places, between the rings and the client."""

    def __init__(self, ledger: Ledger, budget: Budget, notes: BatchLog) -> None:
        self.by_key: dict[Any, Answer] = {}  # by the keys of their requests
        self.lends = False  # what is delivered is a `Lent`, from which the delivery makes the batch
        self.mover: Callable[[Any], Any] | None = None  # copies each plain tensor at delivery
        self.in_place: PageLocks | None = None  # have batches stay although there is a mover
        self.is_closed = False  # the segment may be another's, so nothing is delivered
        self.ledger = ledger
        self._progress = ledger.progress
        self._budget = budget
        self._notes = notes

    def slots(self) -> set[int]:
        """Collect the slots of the answers that are in theirs."""
        return {answer.slot for answer in self.in_slots()}

    def in_slots(self) -> list[Answer]:
        """List the answers that are in their slots, in the order in which they came."""
        return [answer for answer in self.by_key.values() if answer.in_slot]

    @property
    def taken_out(self) -> int:
        """Number of answers that are not in their slots any more, and not delivered."""
        return sum(not answer.in_slot for answer in self.by_key.values())

    def forget(self, expected: Collection[Any]) -> bool:
        """
        Free what was received for requests of other keys than the expected. True if there was any.

        An interrupt hit it between taking them from its record and delivering them.
        """
        lost = [key for key in self.by_key if key not in expected]
        for key in lost:
            answer = self.by_key.pop(key)
            if answer.in_slot:
                self.ledger.discard(answer.slot)
        return bool(lost)

    def deliver(self, answer: Answer) -> Any:
        """
        Turn an answer into its batch, or into an error in its place; the same again until `drop`.

        If the log's note of it was put aside, the caller takes that up.

        The batch's tensors and arrays are views of the slot, unless so many slots are held that
        the workers would run out of them: then it is copied out and the slot is free at once.
        If the delivery has answers lent, it is a `Lent`, or what was made of it ahead.
        """
        if self.is_closed:
            return Failure(RuntimeError("the loader was closed before this batch was delivered"))
        if answer.in_slot:
            self._decode(answer, self._reason(answer.slot))
        return answer.batch

    def drop(self, answer: Answer) -> None:
        """Forget an answer: its client has what became of it, or has lost it to an interrupt."""
        self.by_key.pop(answer.key, None)

    def lend(self, answer: Answer) -> None:
        """Take an answer out of its slot ahead: its `batch` is a `Lent` then, or an error."""
        self._decode(answer, self._reason(answer.slot))

    def _decode(self, answer: Answer, reason: Spill | None) -> None:
        # To move a batch that takes next to nothing is nothing to speak of.
        copied_bytes = 0 if reason is None else self._budget.bytes_to_copy(answer.slot)
        if self._progress.follows:
            answer.snapshot = self._progress.note_of(answer.slot)
        if reason is not None and not self._budget.can_copy_out(copied_bytes):
            refusal = self._budget.refusal(copied_bytes, reason)
            answer.batch, answer.in_slot = Failure(refusal), False
            self.ledger.discard(answer.slot)
            return
        try:
            spill = 0 if reason is None else reason.number
            in_place = self.in_place if reason is None else None
            if self.lends and in_place is not None and self._budget.reason_to_spill(answer.slot):
                in_place = None  # copied out of its slot by who borrows it, which is free then
            stays = in_place is not None and in_place.take(answer.slot)
            if self.lends:
                self.ledger.lend(answer.slot, spill, answer, stays)
                # The slot is the delivery's, not the user's: the log is not to find it held.
                answer.log = self._notes.put_aside()
            else:
                self.ledger.deliver(answer.slot, spill, self.mover, answer, Failure, stays)
        except Exception as error:
            answer.batch, answer.in_slot = Failure(error), False
        if reason is not None and copied_bytes > 0:
            self._budget.note_spill(reason)

    def _reason(self, slot: int) -> Spill | None:
        """Why a batch that is delivered now must be copied out first."""
        in_place = self.in_place
        may_stay = in_place is not None and in_place.may_take(slot)
        stays = not self.lends and (self.mover is None or may_stay)
        reason = self._budget.reason_to_spill(slot, stays)
        if reason in FOR_ROOM and in_place is not None and in_place.wait_for_slot(slot):
            reason = self._budget.reason_to_spill(slot, stays)
        return reason

    def spill_until(self, fits: Callable[[], bool]) -> None:
        """Copy answers out of their slots until there is room for an earlier batch."""
        for answer in list(self.by_key.values()):
            if fits():
                return
            if answer.in_slot:
                self._decode(answer, Spill.FOR_AN_EARLIER_BATCH)
                answer.log = self._notes.put_aside()
