"""
Workers that come and go while a transport is in use.

There is a seat for each worker that there may ever be, and not all need be taken. Who sits down is
asked from then on; who is let go is asked nothing more, and leaves behind its last answer. So no
request ever depends on it, if requests are for any worker.
"""

import errno
from typing import Any

from shmloader import log
from shmloader.core import Order
from shmloader.processes.newborn import Newborn
from shmloader.processes.nursery import Nursery
from shmloader.transport.transport import Transport


class Vacant:
    """What stands for a worker's process in a seat that is not taken."""

    daemon = True
    exitcode = 0
    ident = pid = None

    def is_alive(self) -> bool:
        """Returns False."""
        return False

    def join(self, timeout: float | None = None) -> None:
        """Wait for nothing."""

    def terminate(self) -> None:
        """End nothing."""

    kill = start = terminate


VACANT = Vacant()


class Seats:
    """Which of a transport's seats are taken."""

    def __init__(self, transport: Transport, workers: list[Any], mother: Any) -> None:
        self.leaving: set[int] = set()  # are asked nothing more, and have answers to give still
        self._fresh = set(range(len(workers)))  # seats whose workers were told of no epoch
        self.refused = 0  # the errno that kept an added worker from starting
        self._transport = transport
        self._workers = workers
        self._mother = mother
        self._added: set[int] = set()  # that have not begun
        self._told: set[int] = set()  # to leave, and have not ended yet

    def has_more(self, worker: int) -> bool:
        """Returns True if a worker is there, or starts, and was not told to leave."""
        return self._workers[worker] is not VACANT and worker not in self._told

    def is_absent(self, worker: int) -> bool:
        """Returns True if a worker need not be told that an epoch begins: it begins in that."""
        if worker in self._fresh and self._transport.ledger.is_seated(worker):
            self._fresh.discard(worker)
        return not self.has_more(worker) or worker in self._fresh

    def living(self) -> set[int]:
        """The workers that are there or start, and are not let go or given up."""
        return set(filter(self.has_more, self._transport.requests.open_seats)) - self.leaving

    def add(self) -> bool:
        """Start one worker more. Returns False if all seats are taken."""
        if self.leaving:
            # It has not left yet, so it may as well stay.
            self._stay(max(self.leaving))
            return True
        worker = next((seat for seat, each in enumerate(self._workers) if each is VACANT), -1)
        if worker < 0 or not self._begins_as_others():
            return False
        self._transport.renew(worker)
        self._fresh.add(worker)
        # In its place before it starts: an interrupt must not leave a process that is not listed.
        self._added.add(worker)
        self._workers[worker] = Newborn(self._mother, worker, None)
        self._transport.requests.open_seat(worker)
        self._workers[worker].start()
        return True

    def _stay(self, worker: int) -> None:
        self._transport.requests.open_seat(worker)
        self.leaving.discard(worker)

    def _begins_as_others(self) -> bool:
        """Returns False if the nursery is gone: another one has the dataset as it is now."""
        is_gone = isinstance(self._mother, Nursery) and not self._mother.process.is_alive()
        if is_gone:
            self.refused = errno.ECHILD
        return not is_gone

    def let_go(self) -> bool:
        """Let one worker go, once it has answered. Returns False if there is no more than one."""
        living = self.living()
        if len(living) <= 1:
            return False
        last = max(living)
        self.leaving.add(last)
        self._transport.requests.close_seat(last)
        self.tend()
        return True

    def tend(self) -> None:
        """See to those that leave, and to those that could not begin."""
        for worker in sorted(self._added):
            self._look_at_added(worker)
        for worker in sorted(self.leaving):
            self._transport.requests.close_seat(worker)  # an interrupt may have come before that
            if self._has_answered(worker) and self._is_another_alive():
                self._tell_to_leave(worker)
        for worker in sorted(self._told):
            if not self._workers[worker].is_alive():
                self._vacate(worker)

    def _has_answered(self, worker: int) -> bool:
        ledger = self._transport.ledger
        is_there = self._workers[worker].ident is not None
        # Of what it has told, some may be wants: an answer counts once it was received.
        owes = bool(ledger.unanswered(worker)) or ledger.progress.is_resuming(worker)
        # What others left that have died goes before all orders.
        return is_there and not owes and not ledger.progress.recalled

    def _is_another_alive(self) -> bool:
        # A death may not have been noticed yet, and the worker that leaves be the only one left.
        return any(self._workers[worker].is_alive() for worker in self.living())

    def give_up(self, worker: int) -> None:
        """Let a worker that leaves stay if the dead one, not replaced, was the last other."""
        leaving = self.leaving - {worker}
        if leaving and self.living() <= {worker}:
            self._stay(max(leaving))

    def _look_at_added(self, worker: int) -> None:
        newborn = self._workers[worker]
        if newborn.ident is not None:
            self._added.discard(worker)
        elif newborn.exitcode is not None:  # it never will
            self.refused = newborn.exitcode
            log.tell("%s: worker %d could not be started", self._transport.name, worker)
            self._transport.requests.close_seat(worker)
            self._added.discard(worker)
            self.leaving.discard(worker)
            self._vacate(worker)

    def _tell_to_leave(self, worker: int) -> None:
        self._transport.tell(worker, Order.QUIT)  # first: after an interrupt it is told again
        self._told.add(worker)
        self.leaving.discard(worker)

    def _vacate(self, worker: int) -> None:
        self._workers[worker] = VACANT
        self._told.discard(worker)
        self._transport.renew(worker)
