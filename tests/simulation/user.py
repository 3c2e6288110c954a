"""The trainer's program of a run: a user who asks, takes, keeps and tells as the seed says."""

from __future__ import annotations

import contextlib
import queue
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy

from shmloader.core import Order, Verb
from shmloader.errors import WorkerBroken
from shmloader.memory.segment_pool import SegmentPool
from tests.simulation.case import Case
from tests.simulation.checks import (
    TAKE_WITHIN_S,
    Children,
    Kept,
    NoAnswer,
    Wrong,
    check_settled,
    drop,
)
from tests.simulation.counted import Counted, CountedSquares, expected
from tests.simulation.door import Door
from tests.simulation.fenced import FencedDelivery
from tests.simulation.lines import Lines
from tests.simulation.waits import Waits

TOLD = "told"


@dataclass
class Seat:
    """What a worker must answer: in order, the keys of requests, and that it was told something."""

    factor: int = 1
    answered: int = 0
    owed: deque[Any] = field(default_factory=deque)


class User:
    """Plays one case in this process, the trainer."""

    seat_of = Seat

    def __init__(self, case: Case, door: Door, waits: Waits, lines: Lines) -> None:
        self._case, self._door, self._waits, self._lines = case, door, waits, lines
        self._chance = random.Random(case.seed)
        self._seats = self._empty_seats()
        self._wanted: dict[str, numpy.ndarray] = {}
        self._kept: list[Kept] = []
        self._children = Children(door, waits)
        self._sent = self._taken = 0
        self._deaths = 0  # that were healed, as far as the user knows
        self._pool = SegmentPool()
        self.squares: CountedSquares

    def _empty_seats(self) -> list[Any]:
        return [self.seat_of() for _ in range(self._case.places)]

    def play(self) -> None:
        """Run from the start of the workers to their end, once or twice."""
        lives = self._case.lives
        try:
            for life in range(1, lives + 1):
                if not self._live(life, life * self._case.answers // lives):
                    break
        finally:
            self._kept.clear()
            self._pool.clear()
        self._children.wait()

    def _live(self, life: int, answers: int) -> bool:
        """Start workers, and use them until that many requests were sent. Returns False if told."""
        case = self._case
        self._seats = self._empty_seats()
        self.squares = CountedSquares.of(case, self._pool, **self._fences())
        self._answers = Counted(case.places, self.squares, self._take_interrupted)
        self._had: set[str] = set()
        self._deaths = self.squares.transport.ledger.sums()["restarts"]
        try:
            goes_on = self._use_until_told(answers, life == case.lives)
        finally:
            self._wanted.clear()
            if not self.squares.close():
                raise Wrong("not all processes were reaped")
            if isinstance(self.squares.delivery, FencedDelivery):
                self._kept.clear()
                self._pool.clear()
                self.squares.delivery.end()
        return goes_on

    def _fences(self) -> dict[str, Any]:
        """How answers are delivered if a device reads them."""
        if not self._case.fences:
            return {}
        chance = random.Random(self._case.seed)
        return {"delivery": lambda *given: FencedDelivery(*given, chance)}

    # The loop

    def _use_until_told(self, answers: int, is_last: bool) -> bool:
        """Use it. Returns False if it ended as it may after nonsense or a death."""
        try:
            while self._sent < answers or (is_last and self._owes()):
                self._use(answers)
            if is_last:
                drop(self._kept, len(self._kept))
                self._settle()  # nonsense may stand where an abandoned answer would
        except (WorkerBroken, NoAnswer):
            if not self._case.forges_at:
                raise
            return False  # what was delivered until then was right
        except RuntimeError as error:
            if self._case.restarts or not self._case.may_end:
                raise
            if "exited unexpectedly" not in str(error):
                raise
            return False
        return True

    def _use(self, answers: int) -> None:
        while self._may_ask(answers):
            self._ask()
        self._take()
        self._do_something_else()

    def _may_ask(self, answers: int) -> bool:
        """Returns True if the next worker is to be asked now: not before it has begun a word."""
        seat = self._seats[self._sent % self._case.workers]
        is_enough = self._sent == answers or len(self._wanted) == self._case.ahead
        return not is_enough and TOLD not in seat.owed

    def _owes(self) -> bool:
        return any(seat.owed for seat in self._seats)

    def _ask(self) -> None:
        worker = self._sent % self._case.workers
        seat, key = self._seats[worker], f"key {self._sent}"
        seat.answered += 1
        length = self._chance.randint(1, self._case.length)
        request = (self._sent, length, int(not self._case.forgets))
        self._wanted[key] = expected(request, seat.factor, seat.answered)
        seat.owed.append(key)
        self._sent += 1
        self._answers.draw(key, request)
        self.squares.send(key, request, worker)

    def _take(self) -> None:
        answer, batch = self._wait_for_one()
        seat = self._seats[answer.worker]
        if answer.kind is Verb.RESUMED:
            self._expect(seat, TOLD)
            return
        self._expect(seat, answer.key)
        self.squares.expected.discard(answer.key)
        self._had.add(answer.key)
        self._check_count()
        self._keep(answer.key, batch)

    def _check_count(self) -> None:
        """A run that is resumed would have the rest: no answer is lost, and none comes twice."""
        if self._answers.has() != self._had:
            raise Wrong(f"{self._answers.has() ^ self._had} were counted, or had, and not both")

    def _wait_for_one(self) -> Any:
        squares = self.squares
        deadline_s = self._door.now_s() + TAKE_WITHIN_S
        while True:
            try:
                with self._lines.interrupts():
                    return next(self._answers)
            except KeyboardInterrupt:
                self._check_count()
                continue  # what it was may be there, however late it is
            except queue.Empty as error:
                if not squares.waiting.may_come_yet(error, squares.active, lambda worker: None):
                    raise
            if self._door.now_s() >= deadline_s:
                raise NoAnswer(f"no answer came within {TAKE_WITHIN_S} s of virtual time")

    def _take_interrupted(self) -> Any:
        """Wait for an answer; the user's interrupts arrive until it is handed out."""
        squares = self.squares
        return squares.waiting.take(TAKE_WITHIN_S, self._receive, squares.expected, squares.active)

    def _receive(self) -> Any:
        """Receive an answer, or find one that was handed over before and lost to an interrupt."""
        answer = self.squares.transport.receive()
        received = self.squares.transport.received.by_key
        if answer is None and self._lines.came:
            return next((received[key] for key in received if key in self._wanted), None)
        return answer

    def _expect(self, seat: Seat, what: Any) -> None:
        if self._lines.came and what in seat.owed:
            seat.owed.remove(what)  # an answer that was found again comes late
            return
        owed = seat.owed.popleft() if seat.owed else None
        if owed != what:
            raise Wrong(f"{what!r} came, and not {owed!r}")

    def _keep(self, key: str, batch: Any) -> None:
        if not isinstance(batch, numpy.ndarray):
            raise Wrong(f"{key}: {batch!r} came as an answer")
        self._taken += 1
        for_answers = self._chance.randint(0, self._case.keeps)
        kept = Kept(batch, self._wanted.pop(key), self._taken + for_answers)
        kept.check("when it comes")
        if isinstance(self.squares.delivery, FencedDelivery):
            self.squares.delivery.read(batch, kept.wanted)
        self._kept.append(kept)
        drop(self._kept, sum(each.until <= self._taken for each in self._kept))

    # What else a user does

    def _do_something_else(self) -> None:
        is_news = self._case.reacts and self._knows_of_a_death()
        for one_in, act in (
            (self._case.tells, self._tell),
            (self._case.abandons, self._abandon),
            (self._case.forgets, self._forget),
            (self._case.forks, self._fork),
        ):
            if one_in and (self._chance.randrange(one_in) == 0 or is_news):
                act()

    def _knows_of_a_death(self) -> bool:
        """Returns True if one more was healed since the last look."""
        before, self._deaths = self._deaths, self.squares.transport.ledger.sums()["restarts"]
        return self._deaths > before

    def _tell(self) -> None:
        worker = self._chance.randrange(self._case.workers)
        seat = self._seats[worker]
        if TOLD in seat.owed:
            return
        seat.factor = self._chance.randint(2, 99)
        seat.owed.append(TOLD)
        self.squares.transport.tell(worker, Order.RESUME, seat.factor)

    def _abandon(self) -> None:
        if any(TOLD in seat.owed for seat in self._seats):
            return
        keep = {key for key in self._wanted if self._chance.random() < 0.3}
        self.squares.transport.abandon(keep)
        self._want_only(keep)

    def _forget(self) -> None:
        forgotten = {key for key in self._wanted if self._chance.random() < 0.3}
        self.squares.transport.forget(forgotten)
        self._want_only(self._wanted.keys() - forgotten)

    def _want_only(self, keys: set[str]) -> None:
        self.squares.expected = {key for key in self._wanted if key in keys}
        self._wanted = {key: wanted for key, wanted in self._wanted.items() if key in keys}
        for seat in self._seats:
            seat.owed = deque(each for each in seat.owed if each == TOLD or each in keys)

    def _fork(self) -> None:
        self._children.fork(self._be_a_child)

    def _be_a_child(self) -> None:
        """Look at what was inherited, again and again, while the parent goes on."""
        for _ in range(self._chance.randint(1, 40)):
            self._door.line(1)
            for kept in self._kept:
                kept.check("in a child")
        drop(self._kept, len(self._kept) // 2)
        transport = self.squares.transport
        ledger = transport.ledger
        for attempt in (
            transport.receive,
            lambda: ledger.place(0, 1 << 40, [0]),
            lambda: ledger.rest(False),
            ledger.restart,
            ledger.stop,
        ):
            with contextlib.suppress(RuntimeError, PermissionError):  # it is the parent's
                attempt()

    # The end

    def _is_busy(self) -> bool:
        transport = self.squares.transport
        is_under_way = bool(transport.requests.waiting or transport.ledger.counts()["placed"])
        # What an interrupt lost is found where the trainer waits.
        return is_under_way or (self._lines.came > 0 and transport.ledger.ready > 0)

    def _settle(self) -> None:
        """All is answered: wait until what was abandoned is answered too, and count the slots."""
        transport = self.squares.transport
        deadline_s = self._door.now_s() + TAKE_WITHIN_S
        while self._is_busy() and self._door.now_s() < deadline_s:
            self.squares.processes.heal_all(self.squares.active)
            if transport.receive() is None:
                transport.wait(self.squares.processes.slice_s, ())
        if self._case.restarts or not self.squares.processes.dead(self.squares.active):
            check_settled(transport)
        # Otherwise slots of the dead, for which nobody waits, stay placed: a close frees them.
