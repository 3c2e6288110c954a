"""
Requests out, batches in: the trainer's side of one iterator, below torch's scheduling.

An interrupt may come between any two lines. Placing and receiving are each one call into C, the
ledger knows what happened, and what an interrupt lost is recovered before the trainer parks.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data._utils.worker import _IterableDatasetStopIteration, _ResumeIteration

from shmloader.core import BatchLog, Delivered, Kind, News, Progress, Verb
from shmloader.errors import WorkerBroken
from shmloader.memory.pool import SegmentPool
from shmloader.memory.segment import Segment
from shmloader.trainer.budget import Budget
from shmloader.trainer.received import Received
from shmloader.trainer.requests import Requests
from shmloader.way_out import Failure
from shmloader.worker.seeds import number_of_attempt

# An attribute of an enum's class takes longer to find than a name of this module.
_END, _NOTHING = Kind.END, Kind.NOTHING

# (torch's task number, what stands for the batch), or a message of torch's own.
_Answer = tuple[Any, Any]


class Transport:
    """
    One iterator's requests and answers.

    Attributes:
        received: Answers that were received and not delivered.
        epoch: The number of this epoch, from 0; -1 before the first.
    """

    def __init__(
        self,
        segment: Segment,
        reserve: int,
        pool: SegmentPool,
        *,
        heals: bool,
        is_iterable: bool,
        is_seeded: bool = False,
        publishes: bool = False,
        follows: bool = False,
        grows: bool = False,
    ) -> None:
        """
        Take over a segment.

        Args:
            reserve: Slots that must not be leased, so that the workers stay busy.
            pool: Counts the spills of the loader's whole life.
            heals: Keep requests until they are answered, because dead workers are replaced.
            is_iterable: Accept from workers that they have reached their end.
            is_seeded: Number each request, because the worker's draws are seeded by the batch.
            publishes: Each answer must say where another worker can go on after it.
            follows: Keep the snapshots that come with answers, because the run is resumable.
            grows: Use more slots than the segment began with, if batches are dropped late.
        """
        self.segment = segment
        self.loader_name = pool.name
        self.ledger = segment.ledger
        self.ledger.heals = heals
        self.ledger.follows = follows
        self.ledger.publishes = publishes
        self.notes = BatchLog(self.ledger)
        self.budget = Budget(self.ledger, pool, segment.shape.slots, reserve, grows)
        self.received = Received(self.ledger, self.budget, self.notes)
        self._is_seeded = is_seeded
        self.epoch = -1
        # The batches of this epoch, which numbers them.
        self.delivered = Delivered(segment.shape.workers, not is_iterable)
        self._asked = [0] * segment.shape.workers  # in this epoch
        # By worker: the snapshot of the last answer that was received.
        self.snapshots: list[bytes | None] = [None] * segment.shape.workers
        self.progress: list[Progress | None] = [None] * segment.shape.workers
        self._growth = pool.growth  # of the loader's whole life
        self._numbers: dict[int, int] = {}  # ticket of this epoch -> torch's task number
        # (task number, Failure): requests that could not be written
        self._failed: deque[_Answer] = deque()
        self._drained: deque[_Answer] = deque()  # taken out of the rings when a worker died
        self._is_iterable = is_iterable
        self._ended: dict[int, int] = {}  # worker at its end in this epoch -> task number
        self._broken: WorkerBroken | None = None  # found while looking ahead
        self.requests = Requests(self.ledger, self.budget)

    # Requests

    def put(self, worker: int, message: Any) -> None:
        """
        Queue what torch puts into an index queue: a task, a resume, or None to quit.

        A task is placed by the next `pump`, once torch has recorded it.
        """
        if self.received.is_closed:
            return  # the segment may be another iterator's by now
        if isinstance(message, tuple):
            self._put_task(worker, *message)
        else:
            self.requests.tell(worker, message)
            self.pump()

    def _put_task(self, worker: int, number: int, index: Any) -> None:
        numbers = (self.epoch, self._place_of(worker, number)) if self._is_seeded else None
        ticket = self.requests.add(worker, (index, numbers))
        self._numbers[ticket] = number

    def _place_of(self, worker: int, number: int) -> int:
        """The number of a batch in its epoch, by torch's number of its task."""
        if self._is_iterable:
            asked = self._asked[worker]
            self._asked[worker] += 1
            return number_of_attempt(worker, len(self._asked), asked)
        return self.delivered.number_of(number)

    def pump(self) -> None:
        """Place waiting requests while there are free slots, and settle grants."""
        if self.ledger.has_demands:
            self._settle_demands()
        requests = self.requests
        if requests.waiting or self.ledger.heals:
            requests.send()
        if requests.not_sent:
            self._settle_not_sent()

    def _settle_not_sent(self) -> None:
        """Have torch raise what keeps a request from being written, in its batch's place."""
        not_sent = self.requests.not_sent
        while not_sent:
            ticket, error = not_sent.popleft()
            if ticket in self._numbers:
                number = self._numbers.pop(ticket)
                self._failed.append((number, Failure(error, number)))

    def forget_worker(self, worker: int) -> None:
        """Drop the requests of a reaped worker and free its slots."""
        self.requests.forget_worker(worker)
        self._ended.pop(worker, None)
        self.ledger.reclaim(worker)

    def recall(self, worker: int) -> Progress:
        """
        Take back the unanswered requests of a reaped worker, to be sent to its replacement.

        Returns:
            Where the replacement goes on.
        """
        self.drain()
        self.ledger.recall(worker)
        if self.ledger.answer_resume(worker):
            self._drained.append((_ResumeIteration(), None))
        return replace(self.ledger.progress[worker])

    def note_growth(self, worker: int, grown_bytes: int, batches: int) -> None:
        """Count a worker that was replaced because it grew by so much in so many batches."""
        before = self._growth.get(worker, (0, 0, 0))
        after = zip(before, (1, grown_bytes, batches), strict=True)
        replaced, taken_bytes, answered = (one + other for one, other in after)
        self._growth[worker] = replaced, taken_bytes, answered

    def drain(self) -> None:
        """Take all answers out of the rings: an answer published before a death counts."""
        while (news := self.ledger.receive()) is not None:
            answer = self._accept(news)
            if answer is not None:
                self._drained.append(answer)

    def awaited_worker(self) -> int | None:
        """The worker that owes the oldest answer, or the answer to a resume; None if none does."""
        owing = []
        for worker in range(self.segment.shape.workers):
            tickets = self.ledger.unanswered(worker)
            if tickets or self.ledger.is_resuming(worker):
                owing.append((tickets[0] if tickets else self.requests.next_ticket, worker))
        return min(owing)[1] if owing else None

    def in_hand(self, worker: int) -> Any:
        """The indices of the first batch that a worker has not answered; None if there is none."""
        tickets = self.ledger.unanswered(worker)
        return self.requests.index_of(tickets[0]) if tickets else None

    # Epochs

    def resume(
        self, epoch: int, snapshots: list[bytes | None], progress: list[Progress | None]
    ) -> None:
        """
        Go on after another run, in the epoch after this one.

        Args:
            snapshots: By worker, the last one of that run.
            progress: By worker, where it goes on; None: where any worker begins.
        """
        self.epoch = epoch
        self.snapshots[:] = snapshots
        self.progress[:] = progress

    def begin_epoch(self, delivered: Delivered) -> None:
        """Discard the answers of the last epoch, even those that are still to come."""
        self.epoch += 1
        self.delivered = delivered
        self._asked = list(delivered.by_worker)
        self._numbers.clear()
        self.received.clear()
        self._failed.clear()
        self._drained.clear()
        self._ended.clear()
        for news in self.ledger.ready_slots():
            self.ledger.discard(news.slot)

    def close(self) -> None:
        """Deliver nothing from now on: the segment may go to another iterator."""
        self.received.is_closed = True
        self.notes.close()

    # Answers

    def receive(
        self, pending: Mapping[int, tuple[Any, ...]], wanted: int | None, active: Sequence[bool]
    ) -> _Answer | None:
        """
        Take the next answer for torch.

        Args:
            pending: torch's record of the tasks that it expects, by number.
            wanted: The number of the task that it waits for; None for any.
            active: torch's record of the workers that have more to give, by worker.

        Returns:
            (number, PendingBatch), a message of torch's own, or None if there is no answer.
        """
        self.pump()
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken
        if self._failed:
            return self._failed.popleft()
        if self._drained:
            return self._drained.popleft()
        found = self._find_again(pending, wanted) if self.received.by_number else None
        while found is None:
            if self._ended and (end := self._find_end(pending, active)) is not None:
                return end
            news = self.ledger.receive()
            if news is None:
                return None
            found = self._accept(news)
        return found

    def _find_end(
        self, pending: Mapping[int, tuple[Any, ...]], active: Sequence[bool]
    ) -> _Answer | None:
        """
        Find a worker at its end all of whose batches torch has, while torch waits for more of them.

        An end that overtakes a batch makes torch drop that batch.
        """
        for worker, number in self._ended.items():
            is_news = number in pending and active[worker]
            if is_news and (worker,) not in map(pending.get, self.received.by_number):
                return number, _IterableDatasetStopIteration(worker)
        return None

    def _find_again(
        self, pending: Mapping[int, tuple[Any, ...]], wanted: int | None
    ) -> _Answer | None:
        """Find an answer that was handed over before and lost to an interrupt."""
        received = self.received.by_number
        if wanted is None:
            # Out of order nothing is kept for later, so whatever is here was lost.
            wanted = next((number for number in received if number in pending), None)
        if wanted is None or wanted not in received or len(pending.get(wanted, ())) != 1:
            return None
        return wanted, received[wanted]

    def _accept(self, news: News) -> _Answer | None:
        # Runs for each batch, so each attribute is read once.
        kind = news.kind
        if kind is None:
            return self._accept_message(news)
        ticket = news.ticket
        self.requests.unanswered.pop(ticket, None)
        number = self._numbers.get(ticket)
        if self.ledger.follows:
            self.snapshots[news.worker] = self.ledger.snapshot_of(news.slot)
        if number is None or kind is _END or kind is _NOTHING:
            self._accept_empty(news, kind, number)
            return None
        pending = self.received.add(news.slot, number)
        del self._numbers[ticket]
        return number, pending

    def _accept_message(self, news: News) -> _Answer | None:
        """Settle what a worker wants, or hand on that its next epoch has begun."""
        if news.verb is Verb.RESUMED:
            return _ResumeIteration(), None
        if news.verb is Verb.WANT:
            self._settle_wants()
            self._settle_shorts()
        return None

    def _accept_empty(self, news: News, kind: Kind, number: int | None) -> None:
        """Free the slot of an answer without a batch, or of an abandoned epoch."""
        if number is not None:
            # First: once the slot is free, an end is recorded nowhere else.
            self._check_end(news.worker, number, kind)
        self.ledger.discard(news.slot)
        self.pump()

    def _check_end(self, worker: int, number: int, kind: Kind) -> None:
        """Refuse an answer that loses a batch: an impossible end, or nothing before the end."""
        if kind is _END and self._is_iterable:
            self._ended[worker] = number
        if not self._is_iterable or not self._is_at_end(worker):
            raise WorkerBroken(
                f"worker {worker} sent {kind.value!r} in place of a batch; its memory was "
                "overwritten, perhaps by native code of the dataset"
            )

    def _is_at_end(self, worker: int) -> bool:
        """Returns True if a worker has sent its end, even in an answer that an interrupt lost."""
        return worker in self._ended or any(
            news.worker == worker and news.kind is _END for news in self.ledger.ready_slots()
        )

    def wait(self, timeout_s: float, pending: Collection[int]) -> None:
        """Park until there may be news, at most timeout_s seconds; pending as in receive()."""
        if self.received.forget(pending):
            self.pump()
        known = self.received.slots()
        if self.ledger.ready == len(known) or not self._recover(known):
            self.ledger.wait(timeout_s)

    def _recover(self, known: set[int]) -> bool:
        """
        Recover answers that an interrupt lost after the ledger received them.

        Args:
            known: The slots of those that it did not.

        Returns:
            True if there were any.
        """
        lost = [news for news in self.ledger.ready_slots() if news.slot not in known]
        for news in lost:
            self._accept(news)
        return bool(lost)

    def drain_ahead(self) -> bool:
        """Drain while a batch may be in hand. Returns True if `receive` has something to say."""
        if self._broken is None:
            try:
                self.drain()
            except WorkerBroken as error:
                self._broken = error  # raised where torch waits: the batch in hand is right
        return bool(self._drained) or self._broken is not None

    # Grants

    def _settle_demands(self) -> None:
        if self.ledger.wanting:
            self._settle_wants()
        if self.ledger.shorts:
            self._settle_shorts()

    def _settle_wants(self) -> None:
        for slot, ticket, want_bytes in self.ledger.wants():
            self._settle(slot, ticket, want_bytes)

    def _settle(self, slot: int, ticket: int, want_bytes: int) -> None:
        """Grant what a worker wants for the batch in hand, refuse it, or let it wait."""
        if not self.budget.can_ever_fit(want_bytes):
            self.ledger.refuse(slot)
            return
        is_oldest = ticket == self.ledger.oldest()
        if is_oldest:
            self._spill_for(slot, want_bytes)
        # Asked even for the oldest: looking for room gives back the pages of free slots.
        fits = self.budget.fits(slot, want_bytes)
        if is_oldest or fits:
            self.ledger.grant(slot, want_bytes)

    def _settle_shorts(self) -> None:
        """
        Make room for workers that find no memory; they look for it by themselves.

        Later batches wait, because memory comes back when earlier ones are dropped. The oldest is
        refused if it waits in vain.
        """
        self.budget.make_room()
        oldest = self.ledger.oldest()
        for slot, ticket in self.ledger.short_slots():
            if ticket == oldest and self.budget.waited_in_vain(ticket):
                self.ledger.refuse(slot)

    def _spill_for(self, slot: int, want_bytes: int) -> None:
        """Copy later answers out of their slots until the oldest ticket has what it needs."""
        self.received.spill_until(lambda: self.budget.fits(slot, want_bytes))

    @property
    def ready(self) -> int:
        """Number of answers that wait: received, failed and in the rings."""
        waiting = len(self.received.by_number) + len(self._failed) + len(self._drained)
        return waiting + self.ledger.unread
