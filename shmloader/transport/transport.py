"""
Requests out, answers in: the trainer's side of a segment and its workers.

It knows no dataset, no sampler and no epoch: a client sends requests, each with a key of its own,
and takes answers. An interrupt may come between any two lines. Placing and receiving are each one
call into C, the ledger knows what happened, and what an interrupt lost is recovered before the
trainer parks.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from shmloader.core import Answer, BatchLog, Kind, Order, Past, Verb
from shmloader.errors import WorkerBroken
from shmloader.memory import policy
from shmloader.memory.segment import Segment
from shmloader.memory.segment_pool import SegmentPool
from shmloader.transport.budget import Budget
from shmloader.transport.delivery import Failure
from shmloader.transport.received import Received
from shmloader.transport.requests import Requests

# An attribute of an enum's class takes longer to find than a name of this module.
_END, _NOTHING, _TOLD, _WANT = Kind.END, Kind.NOTHING, Verb.RESUMED, Verb.WANT
_ABANDONED = object()
_NO_REQUEST = (None, None)


def _is_never(worker: int) -> bool:
    return False


class Transport:
    """One client's requests and answers."""

    def __init__(
        self,
        segment: Segment,
        reserve: int,  # slots that must not be leased, so that the workers stay busy
        pool: SegmentPool,  # counts the spills of the client's whole life
        *,
        heals: bool,  # dead workers are replaced, so requests are kept until they are answered
        publishes: bool = False,  # each answer must say where another worker can go on after it
        repeats: bool = True,  # a replacement is told all words since the last answer
        follows: bool = False,  # the snapshots that come with answers are kept
        grows: bool = False,  # there may be more slots, if batches are dropped late
        most_each: int | None = None,  # as `Requests` has it
    ) -> None:
        """Take over a segment."""
        self.segment = segment
        self.name = pool.name  # what messages call it
        self.ledger = ledger = segment.ledger
        self.heals = heals
        progress = ledger.progress
        progress.heals, progress.follows = heals, follows
        progress.publishes, progress.repeats = publishes, repeats
        self.notes = BatchLog(ledger)
        self.budget = Budget(ledger, pool, segment.shape.slots, reserve, grows)
        self.received = Received(ledger, self.budget, self.notes)
        self.requests = Requests(ledger, self.budget, most_each)
        self.snapshots = progress.last_notes  # by worker, if notes are kept
        self.left = pool.left  # of the client's whole life
        self._keys: dict[int, Any] = {}  # by ticket, of requests whose answers are wanted
        self._again: deque[Answer] = deque()  # to be taken before those in the rings
        self._broken: WorkerBroken | None = None  # found while looking ahead
        self._most_each = most_each
        # Says of a worker that it is told of no epoch, because it begins in that.
        self.is_absent: Callable[[int], bool] = _is_never

    # Requests

    def send(self, worker: int, index: Any, numbers: tuple[int, int] | None, key: Any) -> int:
        """
        Have a worker asked, once `pump` finds a free slot. Returns the request's ticket.

        Args:
            worker: Its number, or `requests.ANY`.
            numbers: Of the epoch, and of the batch in it; None without seeds by the batch.
            key: By which the client knows the answer; no other that it waits for has it.
        """
        ticket = self.requests.add(worker, (index, numbers))
        self._keys[ticket] = key
        return ticket

    def tell(self, worker: int, order: Order, word: int | None = None) -> None:
        """
        Tell a worker something, after the requests that it was sent; its replacement is told again.

        Of RESUME the client waits for the answer before it sends that worker another request: a
        replacement is sent all unanswered requests first.
        """
        if order is Order.RESUME and self.is_absent(worker):
            self._again.append(Answer(_TOLD, worker))
            return
        self.requests.tell(worker, order, word)
        self.pump()

    def pump(self) -> None:
        """Place waiting requests while there are free slots, and settle grants."""
        if self.ledger.has_demands:
            self._settle_demands()
        requests = self.requests
        if requests.waiting or self.heals:
            requests.send()
        if requests.not_sent:
            self._settle_not_sent()

    def _settle_not_sent(self) -> None:
        """Answer a request that cannot be written with what keeps it from that."""
        not_sent = self.requests.not_sent
        while not_sent:
            ticket, error = not_sent.popleft()
            if ticket in self._keys:
                key = self._keys.pop(ticket)
                failed = Answer(Kind.ERROR, -1, ticket, key)
                failed.batch = Failure(error)
                self.received.by_key[key] = failed
                self._again.append(failed)

    def abandon(self, keep: Collection[Any] = ()) -> None:
        """Discard all answers, even those still to come, except for requests of these keys."""
        self._keys = {ticket: key for ticket, key in self._keys.items() if key in keep}
        self.received.forget(keep)
        self._again = deque(answer for answer in self._again if answer.key in keep)
        known = self.received.slots()
        for answer in self.ledger.ready_slots():
            if answer.slot not in known and answer.ticket not in self._keys:
                self.ledger.discard(answer.slot)

    def forget(self, keys: Collection[Any]) -> None:
        """Want no answer to some requests, and have no other worker asked if theirs dies."""
        tickets = {ticket for ticket, key in self._keys.items() if key in keys}
        for ticket in tickets:
            del self._keys[ticket]
        self.requests.forget(tickets)
        # A look for dead workers may have taken an answer out of its ring already.
        self._again = deque(answer for answer in self._again if answer.key not in keys)
        self.received.forget(self.received.by_key.keys() - set(keys))

    def known(self) -> set[Any]:
        """Collect the keys of the requests whose answers may still be taken or delivered."""
        return {*self._keys.values(), *self.received.by_key}

    def forget_worker(self, worker: int) -> None:
        """Drop the requests of a reaped worker that nothing replaces, and free its slots."""
        lost = self.ledger.unanswered(worker) if self.requests.is_for_any else []
        self.requests.forget_worker(worker)
        self.ledger.reclaim(worker)
        if self.requests.is_for_any:
            # The client does not know which worker has a request, so it waits for the answers.
            why = f"worker {worker} died before it answered this request, and was not replaced"
            self.requests.not_sent.extend((ticket, RuntimeError(why)) for ticket in lost)
            self.requests.close_seat(worker)
            self.pump()

    def recall(self, worker: int) -> Past:
        """Take back a reaped worker's unanswered requests. Returns where another goes on."""
        self.drain()
        self.ledger.recall(worker)
        if self.ledger.progress.answer_resume(worker):
            self._again.append(Answer(_TOLD, worker))
        return replace(self.ledger.progress.pasts[worker])

    def renew(self, worker: int) -> None:
        """Empty the seat of a worker that has ended, for one that begins as any other."""
        self.drain_ahead()  # its last answers may still be in its ring
        self.requests.forget_worker(worker)
        self.ledger.reclaim(worker)
        self.ledger.progress.renew(worker)

    def note_workers(self, count: int) -> None:
        """Say how many workers there are now: slots and room are kept free for so many."""
        assert self._most_each is not None, "requests are for any worker"
        slots = self.segment.shape.slots
        self.budget.reserve = policy.reserved_slots(self._most_each * count, count, slots)
        self.ledger.scarce_slots = policy.scarce_slots(slots, self.budget.reserve)
        self.ledger.share_room(count)

    def awaited_worker(self) -> int | None:
        """
        The worker that owes the oldest answer, or the answer to an order; None if none does.

        If none is there that could be asked, it is the first of those that have not begun.
        """
        owing = []
        for worker in range(self.segment.shape.workers):
            tickets = self.ledger.unanswered(worker)
            if tickets or self.ledger.progress.is_resuming(worker):
                owing.append((tickets[0] if tickets else self.requests.next_ticket, worker))
        return min(owing)[1] if owing else self.requests.missed()

    def in_hand(self, worker: int) -> Any:
        """What a worker was asked first that it has not answered; None if there is nothing."""
        tickets = self.ledger.unanswered(worker)
        index, _ = self.requests.unanswered.get(tickets[0], _NO_REQUEST) if tickets else _NO_REQUEST
        return index

    def close(self) -> None:
        """Deliver nothing from now on: the segment may go to another client."""
        self.received.is_closed = True
        self.notes.close()

    # Answers

    def receive(self) -> Answer | None:
        """
        Take the next answer; None if there is none.

        An END or NOTHING keeps its slot until `discard`. A batch, or an error in its place, is
        among the `received` until it is delivered.

        Raises:
            WorkerBroken: A worker wrote what the protocol does not allow.
        """
        self.pump()
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken
        if self._again:
            return self._again.popleft()
        while (answer := self.ledger.receive()) is not None:
            if self._accepts(answer):
                return answer
        return None

    def _accepts(self, answer: Answer) -> bool:
        """Take in what a worker told. Returns True if the client is to have it."""
        # Runs for each batch, so each attribute is read once.
        kind, ticket = answer.kind, answer.ticket
        if ticket < 0:
            if kind is _WANT:
                self._settle_demands()
            return kind is _TOLD
        self.requests.unanswered.pop(ticket, None)
        key = self._keys.get(ticket, _ABANDONED)
        if key is _ABANDONED:
            self.ledger.discard(answer.slot)
            self.pump()
            return False
        answer.key = key
        if kind is not _END and kind is not _NOTHING:
            self.received.by_key[key] = answer
            del self._keys[ticket]
        return True

    def discard(self, answer: Answer) -> None:
        """Free the slot of an answer without a batch."""
        self._keys.pop(answer.ticket, None)
        self.ledger.discard(answer.slot)
        self.pump()

    def leave_out(self) -> None:
        """Count the answer that was delivered last as no batch: its client goes on without it."""
        self.notes.put_aside()
        self.ledger.leave_out()

    def has_sent(self, worker: int, kind: Kind) -> bool:
        """Returns True if a worker has sent such an answer, which lies in its slot still."""
        return any(
            answer.worker == worker and answer.kind is kind for answer in self.ledger.ready_slots()
        )

    def drain(self) -> None:
        """Take all answers out of the rings: an answer published before a death counts."""
        while (answer := self.ledger.receive()) is not None:
            if self._accepts(answer):
                self._again.append(answer)

    def drain_ahead(self) -> bool:
        """Drain while a batch may be in hand. Returns True if `receive` has something to say."""
        if self._broken is None:
            try:
                self.drain()
            except WorkerBroken as error:
                self._broken = error  # raised where the client waits: the batch in hand is right
        return bool(self._again) or self._broken is not None

    def wait(self, timeout_s: float, expected: Collection[Any]) -> None:
        """Park at most timeout_s until there may be news of the requests with these keys."""
        if self.received.forget(expected):
            self.pump()
        self.requests.note_seats()
        known = self.received.slots()
        if self.ledger.ready == len(known) or not self._recover(known, expected):
            self.ledger.wait(timeout_s)

    def _recover(self, known: set[int], expected: Collection[Any]) -> bool:
        """
        Recover answers that an interrupt lost: their slots are not known. True if any were.

        One that a second interrupt lost, after its client had it, is not expected any more.
        """
        lost = [answer for answer in self.ledger.ready_slots() if answer.slot not in known]
        for answer in lost:
            if self._keys.get(answer.ticket) not in expected:
                self._keys.pop(answer.ticket, None)
            if self._accepts(answer):
                self._again.append(answer)
        return bool(lost)

    # Grants

    def _settle_demands(self) -> None:
        for slot, ticket, want_bytes in self.ledger.wants():
            self._settle_want(slot, ticket, want_bytes)
        shorts = self.ledger.short_slots()
        if shorts:
            self._settle_shorts(shorts)

    def _settle_want(self, slot: int, ticket: int, want_bytes: int) -> None:
        """Grant what a worker wants for the batch in hand, refuse it, or let it wait."""
        if not self.budget.can_ever_fit(want_bytes):
            self.ledger.refuse(slot)
            return
        is_oldest = ticket == self.ledger.oldest()
        if is_oldest:
            self.received.spill_until(lambda: self.budget.fits(slot, want_bytes))
        # Asked even for the oldest: looking for room gives back the pages of free slots.
        fits = self.budget.fits(slot, want_bytes)
        if is_oldest or fits:
            self.ledger.grant(slot, want_bytes)

    def _settle_shorts(self, shorts: list[tuple[int, int]]) -> None:
        """
        Make room for workers that find no memory; they look for it by themselves.

        Later batches wait, because memory comes back when earlier ones are dropped. The oldest is
        refused if it waits in vain.
        """
        self.budget.make_room()
        oldest = self.ledger.oldest()
        for slot, ticket in shorts:
            if ticket == oldest and self.budget.waited_in_vain(ticket):
                self.ledger.refuse(slot)

    @property
    def ready(self) -> int:
        """Number of answers that wait: received, not taken, and in the rings."""
        untaken = sum(1 for answer in self._again if answer.key not in self.received.by_key)
        return len(self.received.by_key) + untaken + self.ledger.unread
