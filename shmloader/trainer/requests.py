"""
Requests on their way to workers: those that wait for a slot, and those that a death would lose.

torch draws indices when it draws; a request waits here, in ticket order, until a slot is free.
"""

from collections import deque
from typing import Any

from torch.utils.data._utils.worker import _ResumeIteration

from shmloader.core import Ledger
from shmloader.errors import WorkerBroken
from shmloader.trainer.budget import Budget

# (index, the numbers of the epoch and of the batch in it if draws are seeded by them)
Request = tuple[Any, tuple[int, int] | None]


class Requests:
    """
    One iterator's requests.

    Every ticket is unique over the iterator's life; torch's task numbers start again each epoch.

    Attributes:
        waiting: (worker, request or message, ticket) in ticket order.
        unanswered: Requests by ticket; only if dead workers are replaced.
        not_sent: Tickets of requests that cannot be written, and why.
        next_ticket: That of the next request.
    """

    def __init__(self, ledger: Ledger, budget: Budget) -> None:
        self.waiting: deque[tuple[int, Any, int | None]] = deque()
        self.unanswered: dict[int, Request] = {}
        self.not_sent: deque[tuple[int, Exception]] = deque()
        self._ledger = ledger
        self._budget = budget
        self.next_ticket = 0

    def add(self, worker: int, request: Request) -> int:
        """Queue a request. Returns its ticket."""
        ticket = self.next_ticket
        self.next_ticket += 1
        if self._ledger.heals:
            self.unanswered[ticket] = request
        self.waiting.append((worker, request, ticket))
        return ticket

    def tell(self, worker: int, message: Any) -> None:
        """Queue a message of torch's: a resume, or None to quit."""
        self.waiting.append((worker, message, None))

    def send(self) -> None:
        """Place what waits while there are free slots, what dead workers left first."""
        if self._ledger.heals and not self._resend():
            return
        try:
            while self.waiting:
                worker, message, ticket = self.waiting[0]
                if ticket is None:
                    self._send(worker, message)
                elif not self._place(worker, ticket, message):
                    break
                self.waiting.popleft()
        except WorkerBroken:
            self.waiting.popleft()
            raise

    def _resend(self) -> bool:
        """Resend the unanswered requests of dead workers. Returns True if all were sent."""
        for ticket, worker in sorted(self._ledger.recalled.items()):
            if not self._place(worker, ticket, self.unanswered[ticket]):
                return False
        self._ledger.tell_resumes_again()
        return True

    def _send(self, worker: int, message: Any) -> None:
        if isinstance(message, _ResumeIteration):
            self._ledger.tell_resume(worker, message.seed)
        else:
            assert message is None, "anything else has a ticket"
            self._ledger.tell_quit(worker)

    def _place(self, worker: int, ticket: int, request: Request) -> bool:
        index, numbers = request
        try:
            copies_in = self._budget.copies_in()
            return self._ledger.place(worker, ticket, index, copies_in, numbers)
        except Exception as error:
            # Such as an index that cannot be pickled: torch would wait for its batch for ever.
            self._ledger.recalled.pop(ticket, None)
            self.unanswered.pop(ticket, None)
            self.not_sent.append((ticket, error))
            return True

    def forget_worker(self, worker: int) -> None:
        """Drop the requests of a reaped worker that it was not sent."""
        self.waiting = deque(item for item in self.waiting if item[0] != worker)

    def index_of(self, ticket: int) -> Any:
        """The index of an unanswered request; None if it is not kept."""
        return self.unanswered[ticket][0] if ticket in self.unanswered else None

    def by_load(self) -> list[int]:
        """List the workers, those with the fewest unanswered requests first, then by their id."""
        loads = self._ledger.loads()
        for worker, _, _ in self.waiting:
            loads[worker] += 1
        return sorted(range(len(loads)), key=loads.__getitem__)

    def untaken(self, worker: int) -> int:
        """Count the requests that wait for a worker, here and in its ring."""
        waiting = sum(1 for item in self.waiting if item[0] == worker)
        return waiting + self._ledger.untaken(worker)
