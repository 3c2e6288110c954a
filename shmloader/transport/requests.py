"""
Requests on their way to workers: those that wait for a slot, and those that a death would lose.

A client asks when it asks; a request waits here, in ticket order, until a slot is free. A request
for any worker is bound when it is placed, to the freest of those that are there: one that starts
late, or is slow, delays no other.
"""

import functools
from collections import deque
from collections.abc import Collection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shmloader.core import Ledger, Order, PackedRecord
from shmloader.errors import WorkerBroken, is_own
from shmloader.transport.budget import Budget

# (index, the numbers of the epoch and of the batch in it if draws are seeded by them)
Request = tuple[Any, tuple[int, int] | None]

ANY = -1  # in place of a worker


class Requests:
    """
    The requests of one transport.

    Those for any worker go to one that has at most `most_each`; None: all are for certain workers.
    """

    def __init__(self, ledger: Ledger, budget: Budget, most_each: int | None) -> None:
        # (worker or ANY, request, ticket), or (worker, order, None), in the order of their coming.
        self.waiting: deque[tuple[int, Any, int | None]] = deque()
        self.unanswered: dict[int, Request] = {}  # by ticket; only if dead workers are replaced
        self.not_sent: deque[tuple[int, BaseException]] = deque()  # what cannot be written, and why
        self._ledger = ledger
        self._progress = ledger.progress
        self._budget = budget
        self._most_each = most_each
        self._open = set(range(len(ledger.progress.pasts)))  # seats of workers that may be asked
        self.next_ticket = 0
        self.lacks_room = False  # the first was not placed for want of a slot, or of memory

    @property
    def is_for_any(self) -> bool:
        """True if requests are for any worker."""
        return self._most_each is not None

    def add(self, worker: int, request: Request) -> int:
        """Queue a request. Returns its ticket."""
        ticket = self.next_ticket
        self.next_ticket += 1
        if self._progress.heals:
            self.unanswered[ticket] = request
        self.waiting.append((worker, request, ticket))
        return ticket

    def tell(self, worker: int, order: Order, word: int | None) -> None:
        """Give an order that is no request, behind the requests that wait for this worker."""
        if self._progress.recalled or any(item[0] == worker for item in self.waiting):
            self.waiting.append((worker, (order, word), None))
        else:
            self._tell_now(worker, order, word)

    def send(self) -> None:
        """Place what waits while there are free slots, what dead workers left first."""
        self.lacks_room = False
        if self._progress.heals and not self._resend():
            return
        try:
            while self.waiting:
                worker, message, ticket = self.waiting[0]
                if worker == ANY and (worker := self._freest()) == ANY:
                    self._lose_if_no_seat_is_open()
                    break
                if ticket is None:
                    self._tell_now(worker, *message)
                elif not self._place(worker, ticket, message):
                    break
                self.waiting.popleft()
        except WorkerBroken:
            self.waiting.popleft()
            raise

    def _resend(self) -> bool:
        """Resend the unanswered requests of dead workers. Returns True if all were sent."""
        for ticket, worker in sorted(self._progress.recalled.items()):
            request = self.unanswered.get(ticket)
            if request is None:  # the client has forgotten it
                del self._progress.recalled[ticket]
            # With the replacement: another worker may have taken later ones, and takes none behind.
            elif not self._place(worker, ticket, request):
                return False
        self._ledger.tell_resumes_again()
        return True

    def _freest(self) -> int:
        """Find the worker with the fewest requests that may have one more; ANY: none."""
        assert self._most_each is not None, "no request is for any worker"
        freest = self._ledger.freest(self._most_each)
        # Answers that wait count too, as where torch asks: with more seats than workers these would
        # make batches for all seats ahead, in ever other slots.
        is_far_ahead = self._ledger.outstanding() >= self._most_each * len(self._open)
        return ANY if is_far_ahead else freest

    def note_seats(self) -> None:
        """Have who has sat down end no wait, unless a request waits for a worker."""
        if self._most_each is not None and (self._progress.recalled or not self.waiting):
            self._ledger.freest(self._most_each)

    def _tell_now(self, worker: int, order: Order, word: int | None) -> None:
        if order is Order.RESUME:
            self._ledger.tell_resume(worker, word)
        else:
            self._ledger.tell_quit(worker)

    def _place(self, worker: int, ticket: int, request: Request) -> bool:
        """Place a request. Returns True if it need not wait."""
        index, numbers = request
        budget = self._budget
        try:
            # Only a record has more bytes than the pages that a slot has in any case.
            is_record = isinstance(index, PackedRecord)
            if not is_record or budget.can_place(worker, ticket, index.length):
                copies_in = budget.copies_in()
                if self._ledger.place(worker, ticket, index, copies_in, numbers):
                    return True
            self.lacks_room = True
            return False
        except BaseException as error:
            if not is_own(error, functools.partial(ForkingPickler.dumps, index)):
                raise
            # Such as an index that cannot be pickled: the client would wait for its batch for ever.
            self._progress.recalled.pop(ticket, None)
            self.unanswered.pop(ticket, None)
            self.not_sent.append((ticket, error))
            return True

    def forget_worker(self, worker: int) -> None:
        """Drop the requests of a reaped worker that it was not sent."""
        self.waiting = deque(item for item in self.waiting if item[0] != worker)

    # Seats

    def open_seat(self, worker: int) -> None:
        """Have a worker asked too, once it has sat down."""
        self._ledger.open_seat(worker, True)
        self._open.add(worker)

    @property
    def open_seats(self) -> list[int]:
        """The workers that may be asked, there or not."""
        return sorted(self._open)

    def missed(self) -> int | None:
        """The first worker that may be asked, if none has sat down and a request waits for one."""
        seats = self.open_seats
        is_missed = self.waiting and self.waiting[0][0] == ANY
        return seats[0] if is_missed and not any(map(self._ledger.is_seated, seats)) else None

    def may_ask(self, worker: int) -> bool:
        """Returns True if a worker may be asked, as all may that are not let go or given up."""
        return worker in self._open

    def close_seat(self, worker: int) -> None:
        """Ask a worker nothing more."""
        self._ledger.open_seat(worker, False)
        self._open.discard(worker)

    def _lose_if_no_seat_is_open(self) -> None:
        """Note that requests for any worker cannot be sent, if there is none."""
        if self._open:
            return
        lost = [ticket for asked, _, ticket in self.waiting if asked == ANY and ticket is not None]
        self.forget(lost)
        why = "all workers that could be asked have died, and were not replaced"
        self.not_sent.extend((ticket, RuntimeError(why)) for ticket in lost)

    def forget(self, tickets: Collection[int]) -> None:
        """Drop requests that were not sent, and do not send again those that a death loses."""
        self.waiting = deque(item for item in self.waiting if item[2] not in tickets)
        for ticket in tickets:
            self.unanswered.pop(ticket, None)

    def loads(self) -> list[int]:
        """Count the unanswered requests of each worker."""
        loads = self._ledger.loads()
        for worker, _, _ in self.waiting:
            if worker != ANY:
                loads[worker] += 1
        return loads

    def untaken(self, worker: int) -> int:
        """Count the requests that wait for a worker, here and in its ring."""
        waiting = sum(1 for item in self.waiting if item[0] == worker)
        return waiting + self._ledger.untaken(worker)
