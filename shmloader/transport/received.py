"""
Answers that were received and not delivered yet: what becomes of them.

A batch is made when it is delivered, so that one which arrives early does not count as held. Three
things come before that: memory that an earlier batch needs, copies to a device ahead of the step,
and an interrupt, after which the client may never ask for an answer again.
"""

from collections.abc import Callable, Collection
from typing import Any

from shmloader.core import BatchLog, Kind, Ledger, Verb
from shmloader.stats.record import Spill
from shmloader.transport.budget import Budget
from shmloader.way_out import Failure


class Answer:
    """
    An answer that was received and not delivered: in its slot, or the batch it spilled to.

    Attributes:
        kind: What it holds; `Verb.RESUMED` if its worker has begun what it was told to.
        worker: Who sent it.
        ticket: Of the request; -1 if it answers none.
        key: By which the client knows the request.
        slot: Where it lies, as long as it is `in_slot`.
        batch: What became of it outside of its slot.
        log: What the log noted of it, while it waits outside of its slot.
        snapshot: What the worker noted for others, once it is out of its slot.
    """

    __slots__ = ("batch", "in_slot", "key", "kind", "log", "slot", "snapshot", "ticket", "worker")

    def __init__(
        self, kind: Kind | Verb, worker: int, ticket: int = -1, key: Any = None, slot: int = -1
    ) -> None:
        self.kind = kind
        self.worker = worker
        self.ticket = ticket
        self.key = key
        self.slot = slot
        self.in_slot = slot >= 0
        self.batch: Any = None
        self.log: bytes | None = None
        self.snapshot: bytes | None = None


class Received:
    """
    The batches, and errors in their places, between the rings and the client.

    Attributes:
        by_key: The answers by the keys of their requests.
        lends: True: what is delivered is a `Lent`, from which the way out makes the batch.
        mover: Copies each plain tensor of a batch when it is delivered; None: they are views.
        is_closed: True when the segment may be another iterator's, so that nothing is delivered.
    """

    def __init__(self, ledger: Ledger, budget: Budget, notes: BatchLog) -> None:
        self.by_key: dict[Any, Answer] = {}
        self.lends = False
        self.mover: Callable[[Any], Any] | None = None
        self.is_closed = False
        self._ledger = ledger
        self._progress = ledger.progress
        self._budget = budget
        self._notes = notes

    def add(self, answer: Answer) -> Answer:
        """Keep an answer until the client asks for it."""
        self.by_key[answer.key] = answer
        return answer

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
        Free what was received for requests that the client does not expect any more.

        An interrupt hit it between taking them from its record and delivering them.

        Args:
            expected: The keys of those that it does.

        Returns:
            True if there were any.
        """
        lost = [key for key in self.by_key if key not in expected]
        for key in lost:
            answer = self.by_key.pop(key)
            if answer.in_slot:
                self._ledger.discard(answer.slot)
        return bool(lost)

    def deliver(self, answer: Answer) -> Any:
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
            if answer.in_slot:
                self._decode(answer, self._reason(answer.slot))
        finally:
            del self.by_key[answer.key]
        batch, answer.batch = answer.batch, None
        return batch

    def lend(self, answer: Answer) -> None:
        """Take an answer out of its slot ahead: its `batch` is a `Lent` then, or an error."""
        self._decode(answer, self._reason(answer.slot))

    def _decode(self, answer: Answer, reason: Spill | None) -> None:
        answer.in_slot = False
        if self._progress.follows:
            answer.snapshot = self._progress.note_of(answer.slot)
        try:
            spill = 0 if reason is None else reason.number
            if self.lends:
                self._ledger.lend(answer.slot, spill, answer)
                # The slot is the way's, not the user's: the log is not to find it held.
                answer.log = self._notes.put_aside()
            else:
                answer.batch = self._ledger.deliver(answer.slot, spill, self.mover)
        except Exception as error:
            answer.batch = Failure(error)
        if reason is not None:
            self._budget.note_spill(reason)

    def _reason(self, slot: int) -> Spill | None:
        """Why a batch that is delivered now must be copied out first."""
        stays = not self.lends and self.mover is None
        return self._budget.reason_to_spill(slot, stays)

    def spill_until(self, fits: Callable[[], bool]) -> None:
        """Copy answers out of their slots until there is room for an earlier batch."""
        for answer in list(self.by_key.values()):
            if fits():
                return
            if answer.in_slot:
                self._decode(answer, Spill.FOR_AN_EARLIER_BATCH)
                answer.log = self._notes.put_aside()
