"""The trainer's program of a run that publishes: what workers answer is lent to subscribers."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from shmloader.memory.segment_pool import SegmentPool
from shmloader.publishing.publisher import Publisher
from shmloader.transport.delivery import Delivery
from shmloader.transport.waiting import Waiting
from tests.simulation.case import Case
from tests.simulation.checks import TAKE_WITHIN_S, Children, NoAnswer, Wrong, check_settled
from tests.simulation.counted import CountedSquares
from tests.simulation.door import Door
from tests.simulation.lines import Lines
from tests.simulation.subscriber import EPOCHS, NAME, PATIENCE_S, Subscriber, count_of, request_of
from tests.simulation.waits import Waits

_END_S = 10.0  # for the others to read, after an error


class _Waiting(Waiting):
    """Looks at the subscribers before each park, as a loader's does with its delivery."""

    def __init__(self, squares: CountedSquares, publisher: Publisher, door: Door) -> None:
        super().__init__(squares.transport, squares.processes, Delivery())
        self._publisher, self._door = publisher, door

    def idle(self) -> float:
        self._door.polls()  # a reply rings no bell
        return self._publisher.waiting()


class PublishUser:
    """Plays one case in this process, the publisher's."""

    def __init__(self, case: Case, door: Door, waits: Waits, lines: Lines) -> None:
        self._case, self._door, self._waits = case, door, waits
        self._pool = SegmentPool()
        self._readers = Children(door, waits)
        self._squares: CountedSquares | None = None
        self._sent = 0
        self._gives_up = case.sleeps > 0 or case.fire_one_in > 0

    def play(self) -> None:
        """Run from the first subscriber to the end of the last one, and of what they forked."""
        all_gone, ends = os.pipe()
        for place in range(self._case.subscribers):
            subscriber = Subscriber(self._case, place, self._door, self._waits)
            self._readers.fork(subscriber.read, may_die=True)
        os.close(ends)
        try:
            self._publish()
            connection.wait([all_gone])
        finally:
            self._close()
            self._pool.clear()
            os.close(all_gone)
        self._readers.wait()

    def _publish(self) -> None:
        case = self._case
        publisher = Publisher(NAME, case.subscribers, count_of(case), PATIENCE_S)
        try:
            for epoch in range(EPOCHS):
                publisher.gather()
                self._open(publisher)
                self._hand_on(publisher, epoch)
                if publisher.is_left:
                    break
            publisher.finish()
            self._settle()
        except (RuntimeError, TimeoutError) as error:
            publisher.finish(error, _END_S)
            is_late = isinstance(error, TimeoutError) and (case.may_end or case.fire_one_in)
            if not is_late and (case.restarts or not case.may_end):
                raise

    def _hand_on(self, publisher: Publisher, epoch: int) -> None:
        for _ in publisher.publish(self._lent(epoch)):
            if publisher.is_left:
                return

    def _open(self, publisher: Publisher) -> None:
        """Start workers, as the iterator of an epoch does, in the last one's segment or another."""
        self._close()
        self._squares = squares = CountedSquares.of(self._case, self._pool)
        publisher.delivery(squares.transport)
        squares.waiting = _Waiting(squares, publisher, self._door)

    def _close(self) -> None:
        if self._squares is not None and not self._squares.close():
            raise Wrong("not all processes were reaped")
        self._squares = None

    # An epoch

    def _lent(self, epoch: int) -> Iterator[Any]:
        """The answers of an epoch, in order and lent."""
        count = count_of(self._case)
        self._sent = epoch * count
        for number in range(self._sent, self._sent + count):
            while self._sent < min((epoch + 1) * count, number + self._case.ahead):
                self._ask()
            yield self._take(number)

    def _ask(self) -> None:
        assert self._squares is not None
        number, self._sent = self._sent, self._sent + 1
        self._squares.send(number, request_of(self._case, number), number % self._case.workers)

    def _take(self, number: int) -> Any:
        assert self._squares is not None
        received = self._squares.transport.received
        deadline_s = self._door.now_s() + PATIENCE_S + TAKE_WITHIN_S
        while number not in received.by_key:
            if self._door.now_s() > deadline_s:
                raise NoAnswer(f"no answer {number} came within {deadline_s} s of virtual time")
            self._wait_for_one(self._squares)
        self._squares.expected.discard(number)
        return self._squares.deliver(received.by_key[number])

    def _wait_for_one(self, squares: CountedSquares) -> None:
        try:
            squares.waiting.take(
                TAKE_WITHIN_S, squares.transport.receive, squares.expected, squares.active
            )
        except queue.Empty as error:
            if not squares.waiting.may_come_yet(error, squares.active, lambda worker: None):
                raise

    # The end

    def _settle(self) -> None:
        """All is read: wait until what was asked ahead is answered, and count the slots."""
        squares = self._squares
        assert squares is not None
        transport = squares.transport
        transport.abandon()
        deadline_s = self._door.now_s() + TAKE_WITHIN_S
        while transport.requests.waiting or transport.ledger.counts()["placed"]:
            if self._door.now_s() > deadline_s:
                break
            squares.processes.heal_all(squares.active)
            if transport.receive() is None:
                transport.wait(squares.processes.slice_s, ())
        if self._case.restarts or not squares.processes.dead(squares.active):
            # One that is given up while it copies may read where a slot's pages were.
            check_settled(transport, may_have_more=self._gives_up)
