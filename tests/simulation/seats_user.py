"""The trainer's program of a run whose workers come and go: all requests are for any of them."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

import numpy

from shmloader.core import Order
from shmloader.transport.requests import ANY
from shmloader.transport.seats import VACANT
from tests.simulation.checks import TAKE_WITHIN_S, Wrong
from tests.simulation.counted import expected
from tests.simulation.user import TOLD, Seat, User

_MOST_AT_ONCE = 2  # workers that are added, or let go, by one call


@dataclass
class Place(Seat):
    """
    A seat, taken by one worker after another.

    Attributes:
        latest: The number of the request that was answered there last.
        added: How many workers have begun there whose first answer has not come.
    """

    latest: int = -1
    added: int = 0


class SeatsUser(User):
    """As a user of workers that stay, who also adds some and lets some go between two answers."""

    seat_of = Place
    _changes = 0  # so far

    @property
    def _is_counted(self) -> bool:
        """True if each answer says which one of its worker it is."""
        case = self._case
        return not (case.forgets or case.abandons or case.interrupts)

    # The loop

    def _may_ask(self, answers: int) -> bool:
        is_enough = self._sent == answers or len(self._wanted) == self._case.ahead
        return not (is_enough or self._is_telling())

    def _owes(self) -> bool:
        return bool(self._wanted) or self._is_telling()

    def _is_telling(self) -> bool:
        return any(seat.owed for seat in self._seats)

    def _ask(self) -> None:
        key, length = f"key {self._sent}", self._chance.randint(1, self._case.length)
        request = (self._sent, length, int(self._is_counted))
        self._wanted[key] = expected(request, 1, 0)
        self._sent += 1
        self._answers.draw(key, request)
        self.squares.send(key, request, ANY)

    def _expect(self, seat: Seat, what: Any) -> None:
        assert isinstance(seat, Place)
        self._answered_by = seat
        if what == TOLD:
            super()._expect(seat, what)
            return
        number = int(what.split()[1])
        if number < seat.latest and not self._lines.came:
            raise Wrong(f"{what!r} came from one that had answered request {seat.latest} before")
        seat.latest = number

    def _keep(self, key: str, batch: Any) -> None:
        if self._is_counted and isinstance(batch, numpy.ndarray):
            self._wanted[key] = self._wanted[key] + self._count(batch[0] - self._wanted[key][0])
        super()._keep(key, batch)

    def _count(self, count: int) -> int:
        """Check which answer of its worker it says that it is."""
        seat = self._answered_by
        is_next = count == seat.answered + 1  # or one of the former worker's that was taken early
        if not is_next and not (count == 1 and seat.added > 0):
            raise Wrong(f"answer {seat.answered + 1} of its worker said that it is {count}")
        seat.added -= not is_next
        seat.answered = count
        return count

    # What else a user does

    def _do_something_else(self) -> None:
        super()._do_something_else()
        if self._chance.randrange(self._case.changes) == 0 and not self._is_telling():
            self._change()

    def _tell(self) -> None:
        """Begin an epoch: all are told, and answer, before more is asked for."""
        if self._wanted or self._is_telling():
            return
        for worker, seat in enumerate(self._seats):
            seat.owed.append(TOLD)
            self.squares.transport.tell(worker, Order.RESUME, 1)

    def _change(self) -> None:
        processes = self.squares.processes
        count = self._chance.randint(1, _MOST_AT_ONCE) * self._chance.choice((1, -1))
        before, living = list(processes.by_id), len(processes.living())
        try:
            with self._lines.interrupts():
                processes.change(count, self.squares.transport)
        except KeyboardInterrupt:
            return  # between two of them, or in the middle of one
        for seat, one, other in zip(self._seats, before, processes.by_id, strict=True):
            seat.added += one is VACANT and other is not VACANT
        self._strike(processes.by_id, before, count)
        least = living if count > 0 else max(1, living + count)
        most = max(least, min(self._case.seats, living + count))
        if not (least <= processes.working <= most or self._may_have_failed()):
            raise Wrong(f"{processes.working} workers of {living}, changed by {count}")

    def _strike(self, workers: list[Any], before: list[Any], count: int) -> None:
        """Kill the worker that came last, or that leaves, at one of the changes."""
        self._changes += 1
        if self._changes != self._case.strikes:
            return
        leaving = self.squares.processes.seats.leaving
        came = [each for each, old in zip(workers, before, strict=True) if each is not old]
        for struck in came if count > 0 else [workers[worker] for worker in sorted(leaving)]:
            if struck.ident is not None and struck.is_alive():
                self._waits.kill(struck.ident, signal.SIGKILL)
                return

    def _may_have_failed(self) -> bool:
        """Returns True if an added worker may not have begun: the nursery is among the mortal."""
        return self._case.may_end

    # The end

    def _settle(self) -> None:
        """All is answered: those that were let go end, and all others live."""
        super()._settle()
        if not self._case.restarts and self._case.may_end:
            return
        processes = self.squares.processes
        deadline_s = self._door.now_s() + TAKE_WITHIN_S
        while not self._is_as_said() and self._door.now_s() < deadline_s:
            processes.heal_all(self.squares.active)
            self.squares.transport.pump()
            self._waits.sleep(processes.slice_s)
        if not self._is_as_said():
            raise Wrong(f"{processes.by_id} are there, of {processes.living()}")

    def _is_as_said(self) -> bool:
        processes = self.squares.processes
        there = {worker for worker, each in enumerate(processes.by_id) if each.is_alive()}
        return there == processes.living()
