"""
Requests out, batches in: the trainer's side of one iterator, below torch's scheduling.

Drawing and placing are separate. torch draws indices when it draws; a request waits here, in ticket
order, until a slot is free. Answers are received as they come and turned into batches only when
they are delivered, so that batches which arrive early do not count as held.

An interrupt may come between any two lines. Placing and receiving are each one call into C, the
ledger knows what happened, and what Python forgot is found again before the trainer parks.
"""

import warnings
from collections import deque
from dataclasses import replace

from torch._utils import ExceptionWrapper
from torch.utils.data._utils.worker import _IterableDatasetStopIteration, _ResumeIteration

from shmloader.core import pickling
from shmloader.errors import RetentionWarning, WorkerBroken
from shmloader.memory import forks

_WARN_AFTER_SPILLS = 16
_REASONS_TO_SPILL = {
    "kept by its worker": "the workers keep what they collate, as in a cache: have the dataset and "
    "collate_fn drop or copy it",
    "too few slots": "more are held than slots can be spared: raise slots (now {slots}) by the "
    "number of batches that you keep, or drop them sooner",
    "too few bytes": "more bytes are held than ring_bytes can spare: raise ring_bytes (now "
    "{ring_bytes}) or drop batches sooner",
    "an earlier batch wants its bytes": "an earlier one needed the room: raise ring_bytes (now "
    "{ring_bytes}) or lower prefetch_factor",
}


class Parcel:
    """An answer that was received and not delivered: in its slot, or the batch it spilled to."""

    __slots__ = ("batch", "in_slot", "number", "slot")

    def __init__(self, slot, number):
        self.slot = slot
        self.number = number
        self.in_slot = True
        self.batch = None


class Failure(ExceptionWrapper):
    """An error of the trainer's own that stands in a batch's place, for torch to raise."""

    def __init__(self, error):
        self.error = error

    def reraise(self):
        """Raise the error as it is."""
        raise self.error


class Transport:
    """
    One iterator's requests and answers.

    Every ticket is unique over the iterator's life; torch's task numbers start again each epoch.
    """

    def __init__(self, segment, reserve, shelf, recalls, is_iterable):
        """
        Take over a segment.

        Args:
            reserve: How many slots must not be leased, so that the workers stay busy.
            shelf: Counts the spills of the loader's whole life.
            recalls: Whether dead workers are replaced, so that requests have to be kept.
            is_iterable: Whether workers may say that they have reached their end.
        """
        self.segment = segment
        self.ledger = segment.ledger
        self.ledger.heals = recalls
        self._reserve = reserve
        self._waiting: deque = deque()  # (worker, message, ticket) in ticket order
        self._next_ticket = 0
        self._numbers = {}  # ticket of this epoch -> torch's task number
        self._received = {}  # task number -> Parcel
        self._early = 0  # how many of those were spilled before delivery
        self._failed: deque = deque()  # (task number, Failure): requests that could not be written
        self._requests = {}  # ticket -> index, until it is answered; if they may be sent again
        self._drained: deque = deque()  # answers taken out of the rings when a worker died
        self._shelf = shelf
        self._is_iterable = is_iterable
        self._ended = {}  # worker that reached its end in this epoch -> task number
        self._is_closed = False
        forks.watch(self.ledger)

    # Requests

    def put(self, worker, message):
        """Queue what torch puts into an index queue: a task, a resume, or None to quit."""
        ticket = None
        if isinstance(message, tuple):
            ticket = self._next_ticket
            self._next_ticket += 1
            self._numbers[ticket] = message[0]
            if self.ledger.heals:
                self._requests[ticket] = message[1]
        self._waiting.append((worker, message, ticket))
        self.pump()

    def pump(self):
        """Place waiting requests while there are free slots, and settle grants."""
        forks.poll()
        if self.ledger.wanting:
            self._settle_wants()
        if self.ledger.heals and not self._send_again():
            return
        try:
            while self._waiting and self._send(*self._waiting[0]):
                self._waiting.popleft()
        except WorkerBroken:
            self._waiting.popleft()
            raise

    def _send_again(self):
        """Send what workers had not answered that died, before anything new; all of it?"""
        for ticket, worker in sorted(self.ledger.recalled.items()):
            if not self._place(worker, ticket, self._requests[ticket]):
                return False
        self.ledger.tell_resumes_again()
        return True

    def _send(self, worker, message, ticket):
        if message is None:
            self.ledger.tell_quit(worker)
            return True
        if isinstance(message, _ResumeIteration):
            self.ledger.tell_resume(worker, message.seed)
            return True
        return self._place(worker, ticket, message[1])

    def _place(self, worker, ticket, index):
        try:
            return self.ledger.place(worker, ticket, index, self.ledger.copies_in)
        except Exception as error:
            # Such as an index that cannot be pickled: torch would wait for its batch for ever.
            self.ledger.recalled.pop(ticket, None)
            self._requests.pop(ticket, None)
            if ticket in self._numbers:
                self._failed.append((self._numbers.pop(ticket), Failure(error)))
            return True

    def forget_worker(self, worker):
        """Take back what was meant for a worker that was reaped."""
        self._waiting = deque(item for item in self._waiting if item[0] != worker)
        self._ended.pop(worker, None)
        self.ledger.reclaim(worker)

    def recall(self, worker):
        """
        Take back what a worker that was reaped had not answered, to be sent to its replacement.

        Returns:
            Where the replacement is to go on: a `shmloader.core.Progress`.
        """
        self._drain()
        self.ledger.recall(worker)
        progress = self.ledger.progress[worker]
        is_idle = not self.ledger.unanswered(worker)
        return replace(progress, skips_epoch=progress.owes_resume and is_idle)

    def _drain(self):
        """Take all answers out of the rings: what was published before a death counts."""
        while (news := self.ledger.receive()) is not None:
            answer = self._accept(*news)
            if answer is not None:
                self._drained.append(answer)

    def awaited_worker(self):
        """The worker that owes the oldest answer, or the answer to a resume; None: nobody does."""
        owing = []
        for worker in range(self.segment.shape.workers):
            tickets = self.ledger.unanswered(worker)
            if tickets or self.ledger.is_resuming(worker):
                owing.append((tickets[0] if tickets else self._next_ticket, worker))
        return min(owing)[1] if owing else None

    def in_hand(self, worker):
        """The indices of the first batch that a worker has not answered; None: there is none."""
        tickets = self.ledger.unanswered(worker)
        return self._requests.get(tickets[0]) if tickets else None

    # Epochs

    def begin_epoch(self):
        """Give up what the last epoch left; its answers that are still to come are discarded."""
        self._numbers.clear()
        self._received.clear()
        self._failed.clear()
        self._drained.clear()
        self._ended.clear()
        self._early = 0
        for _, slot, _, _ in self.ledger.ready_slots():
            self.ledger.discard(slot)

    def close(self):
        """Deliver nothing from now on: the segment may go to another iterator."""
        self._is_closed = True

    # Answers

    def receive(self, pending, wanted, active):
        """
        Take the next answer that torch shall see.

        Args:
            pending: torch's record of the tasks that it expects, by number.
            wanted: The number of the task that it waits for; None: any.
            active: torch's record of the workers that have more to give, by worker.

        Returns:
            (number, Parcel), a message of torch's own, or None.
        """
        self.pump()
        if self._failed:
            return self._failed.popleft()
        if self._drained:
            return self._drained.popleft()
        found = self._find_again(pending, wanted)
        while found is None:
            if self._ended and (end := self._find_end(pending, active)) is not None:
                return end
            news = self.ledger.receive()
            if news is None:
                return None
            found = self._accept(*news)
        return found

    def _find_end(self, pending, active):
        """
        Find a worker of which torch has all batches, and does not know that there are no more.

        An end that overtakes a batch makes torch give that batch up.
        """
        for worker, number in self._ended.items():
            is_news = number in pending and active[worker]
            if is_news and (worker,) not in map(pending.get, self._received):
                return number, _IterableDatasetStopIteration(worker)
        return None

    def _find_again(self, pending, wanted):
        """Find an answer that was handed over before and lost to an interrupt."""
        if wanted is None:
            # Out of order nothing is kept for later, so whatever is here was lost.
            wanted = next((number for number in self._received if number in pending), None)
        parcel = self._received.get(wanted)
        if parcel is None or len(pending.get(wanted, ())) != 1:
            return None
        return wanted, parcel

    def _accept(self, worker, verb, slot, ticket, kind):
        if verb == "resumed":
            return _ResumeIteration(), None
        if verb == "want":
            self._settle_wants()
        if verb != "ready":
            return None
        self._requests.pop(ticket, None)
        number = self._numbers.get(ticket)
        if number is None or kind in ("end", "nothing"):
            self._accept_empty(worker, slot, number, kind)
            return None
        self._received[number] = parcel = Parcel(slot, number)
        del self._numbers[ticket]
        return number, parcel

    def _accept_empty(self, worker, slot, number, kind):
        """Free the slot of an answer without a batch, or of one from an epoch given up."""
        if number is not None:
            # First: when the slot is free, an end is nowhere else.
            self._check_end(worker, number, kind)
        self.ledger.discard(slot)
        self.pump()

    def _check_end(self, worker, number, kind):
        """Refuse what would lose a batch: an end that cannot be, or nothing before the end."""
        if kind == "end" and self._is_iterable:
            self._ended[worker] = number
        if not self._is_iterable or not self._is_at_end(worker):
            raise WorkerBroken(
                f"worker {worker} sent {kind!r} in place of a batch; its memory was overwritten, "
                "perhaps by native code of the dataset"
            )

    def _is_at_end(self, worker):
        """Whether a worker has sent its end, perhaps in an answer that an interrupt lost."""
        return worker in self._ended or any(
            (owner, kind) == (worker, "end") for owner, _, _, kind in self.ledger.ready_slots()
        )

    def wait(self, timeout_s, pending):
        """Park until there may be news, at most timeout_s seconds; pending as in receive()."""
        for number in [number for number in self._received if number not in pending]:
            # An interrupt hit torch between taking it from its record and delivering it.
            self._forget(number)
        in_slots = len(self._received) - self._early
        if self.ledger.ready == in_slots or not self._recover():
            self.ledger.wait(timeout_s)

    def _forget(self, number):
        parcel = self._received.pop(number)
        if parcel.in_slot:
            self.ledger.discard(parcel.slot)
        self.pump()

    def _recover(self):
        """Take up answers that the ledger received and Python lost to an interrupt; any there?"""
        known = {parcel.slot for parcel in self._received.values() if parcel.in_slot}
        lost = [answer for answer in self.ledger.ready_slots() if answer[1] not in known]
        for worker, slot, ticket, kind in lost:
            self._accept(worker, "ready", slot, ticket, kind)
        return bool(lost)

    def deliver(self, parcel):
        """
        Turn an answer into its batch, or into the error that stands in its place.

        The batch's tensors and arrays are views of the slot, unless so many slots are held that
        the workers would run out of them: then it is copied out and the slot is free at once.
        """
        if self._is_closed:
            return Failure(RuntimeError("the loader was closed before this batch was delivered"))
        if parcel.in_slot:
            try:
                self._decode(parcel, self._reason_to_spill(parcel.slot))
            finally:
                del self._received[parcel.number]
        else:
            self._early -= 1
            del self._received[parcel.number]
        batch, parcel.batch = parcel.batch, None
        return batch

    def _reason_to_spill(self, slot):
        """Why a batch must not stay in its slot; None: it may."""
        ledger = self.ledger
        if ledger.is_kept(slot):
            # What the worker keeps shall not change when the trainer works in place.
            return "kept by its worker"
        if ledger.idle_slots() <= self._reserve:
            return "too few slots"
        if ledger.wanting > 0 or not ledger.leasable(slot, self._reserve):
            return "too few bytes"
        return None

    def _decode(self, parcel, reason):
        parcel.in_slot = False
        try:
            parcel.batch = self.ledger.deliver(parcel.slot, reason is not None, pickling.loads)
        except Exception as error:
            parcel.batch = Failure(error)
        if reason is not None:
            self._advise(reason)

    def _advise(self, reason):
        self._shelf.spills += 1
        if self._shelf.spills != _WARN_AFTER_SPILLS:
            return
        warnings.warn(
            f"{self._shelf.spills} batches were copied out of their slots, the last because "
            f"{self._explain(reason)}. Only the time of a copy is lost.",
            RetentionWarning,
            stacklevel=7,
        )

    def _explain(self, reason):
        return _REASONS_TO_SPILL[reason].format(
            slots=self.segment.shape.slots, ring_bytes=self.ledger.ring_bytes
        )

    # Grants

    def _settle_wants(self):
        for slot, ticket, want_bytes in self.ledger.wants():
            self._settle(slot, ticket, want_bytes)

    def _settle(self, slot, ticket, want_bytes):
        """Grant what a worker wants for the batch it is writing, refuse it, or let it wait."""
        ledger = self.ledger
        if want_bytes > min(ledger.ring_bytes, ledger.range_bytes):
            ledger.refuse(slot)
            return
        is_oldest = ticket == ledger.oldest()
        if is_oldest:
            self._spill_for(slot, want_bytes)
        # Asked for the oldest too: looking for room gives back what free slots keep.
        has_room = ledger.room(slot, want_bytes) >= want_bytes
        if is_oldest or has_room:
            ledger.grant(slot, want_bytes)

    def _spill_for(self, slot, want_bytes):
        """Copy later answers out of their slots until the oldest ticket has what it needs."""
        for parcel in list(self._received.values()):
            if self.ledger.room(slot, want_bytes) >= want_bytes:
                return
            if parcel.in_slot:
                self._early += 1
                self._decode(parcel, "an earlier batch wants its bytes")

    def untaken(self, worker):
        """How many requests wait for a worker, here and in its ring."""
        waiting = sum(1 for item in self._waiting if item[0] == worker)
        return waiting + self.ledger.untaken(worker)

    @property
    def has_news(self):
        """Whether answers wait in the rings."""
        return self.ledger.unread > 0

    @property
    def ready(self):
        """How many answers wait: received, failed and in the rings."""
        waiting = len(self._received) + len(self._failed) + len(self._drained)
        return waiting + self.ledger.unread
