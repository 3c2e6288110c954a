"""
Requests on their way to workers: those that wait for a slot, and those that a death would lose.

A client asks when it asks; a request waits here, in ticket order, until a slot is free.
"""

from collections import deque
from collections.abc import Collection
from typing import Any

from shmloader.core import Figures, Ledger, Order
from shmloader.errors import WorkerBroken
from shmloader.transport.budget import Budget

# (index, the numbers of the epoch and of the batch in it if draws are seeded by them)
Request = tuple[Any, tuple[int, int] | None]


class Requests:
    """
    The requests of one transport.

    Attributes:
        waiting: (worker, request, ticket), or (worker, order, None), in the order of their coming.
        unanswered: Requests by ticket; only if dead workers are replaced.
        not_sent: Tickets of requests that cannot be written, and why.
        next_ticket: That of the next request.
    """

    def __init__(self, ledger: Ledger, figures: Figures, budget: Budget) -> None:
        self.waiting: deque[tuple[int, Any, int | None]] = deque()
        self.unanswered: dict[int, Request] = {}
        self.not_sent: deque[tuple[int, Exception]] = deque()
        self._ledger = ledger
        self._figures = figures
        self._progress = ledger.progress
        self._budget = budget
        self.next_ticket = 0

    def add(self, worker: int, request: Request) -> int:
        """Queue a request. Returns its ticket."""
        ticket = self.next_ticket
        self.next_ticket += 1
        if self._progress.heals:
            self.unanswered[ticket] = request
        self.waiting.append((worker, request, ticket))
        return ticket

    def tell(self, worker: int, order: Order, word: int | None) -> None:
        """Queue an order that is no request."""
        self.waiting.append((worker, (order, word), None))

    def send(self) -> None:
        """Place what waits while there are free slots, what dead workers left first."""
        if self._progress.heals and not self._resend():
            return
        try:
            while self.waiting:
                worker, message, ticket = self.waiting[0]
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
            elif not self._place(worker, ticket, request):
                return False
        self._ledger.tell_resumes_again()
        return True

    def _tell_now(self, worker: int, order: Order, word: int | None) -> None:
        if order is Order.RESUME:
            self._ledger.tell_resume(worker, word)
        else:
            self._ledger.tell_quit(worker)

    def _place(self, worker: int, ticket: int, request: Request) -> bool:
        index, numbers = request
        try:
            copies_in = self._budget.copies_in()
            return self._ledger.place(worker, ticket, index, copies_in, numbers)
        except Exception as error:
            # Such as an index that cannot be pickled: the client would wait for its batch for ever.
            self._progress.recalled.pop(ticket, None)
            self.unanswered.pop(ticket, None)
            self.not_sent.append((ticket, error))
            return True

    def forget_worker(self, worker: int) -> None:
        """Drop the requests of a reaped worker that it was not sent."""
        self.waiting = deque(item for item in self.waiting if item[0] != worker)

    def forget(self, tickets: Collection[int]) -> None:
        """Drop requests that were not sent, and do not send again those that a death loses."""
        self.waiting = deque(item for item in self.waiting if item[2] not in tickets)
        for ticket in tickets:
            self.unanswered.pop(ticket, None)

    def by_load(self) -> list[int]:
        """List the workers, those with the fewest unanswered requests first, then by their id."""
        loads = self.loads()
        return sorted(range(len(loads)), key=loads.__getitem__)

    def loads(self) -> list[int]:
        """Count the unanswered requests of each worker."""
        loads = self._figures.loads()
        for worker, _, _ in self.waiting:
            loads[worker] += 1
        return loads

    def untaken(self, worker: int) -> int:
        """Count the requests that wait for a worker, here and in its ring."""
        waiting = sum(1 for item in self.waiting if item[0] == worker)
        return waiting + self._figures.untaken(worker)
