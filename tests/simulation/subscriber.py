"""A subscriber of a run: it reads, keeps, leaves, comes back and sleeps, as the seed says."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy

from shmloader.publishing.subscription import Subscription, subscribe
from tests.simulation.case import Case
from tests.simulation.checks import Children, Kept, Wrong, drop
from tests.simulation.counted import expected
from tests.simulation.door import Door
from tests.simulation.waits import Waits

NAME = "simulated"
EPOCHS = 2
PATIENCE_S = 2.5  # of virtual time: the publisher looks a thousand times a second
_JOIN_S = 60.0


def count_of(case: Case) -> int:
    """How many batches an epoch has."""
    return max(1, case.answers // EPOCHS)


def request_of(case: Case, number: int) -> tuple[int, int, int]:
    """What is asked of a worker for a batch; they are counted through all epochs."""
    length = random.Random(case.seed * 1_000_003 + number).randint(1, case.length)
    return number, length, 0


class Subscriber:
    """Reads in a process of its own what the case publishes."""

    def __init__(self, case: Case, place: int, door: Door, waits: Waits) -> None:
        self._case, self._door = case, door
        self._chance = random.Random(case.seed * 31 + place)
        self._children = Children(door, waits)
        self._kept: list[Kept] = []
        self._taken = 0
        self._epoch = -1  # the last one that was begun
        # Or it has left, or was given up, for which time that passes early is enough.
        self._may_fail = case.may_end or case.fire_one_in > 0
        self._batches: Subscription

    def read(self) -> None:
        """Take part from the beginning to the end; an error may come where there is a reason."""
        try:
            self._join()
            while self._epoch < EPOCHS - 1:
                self._read_epoch()
            if self._chance.random() < 0.5:  # otherwise its end says it
                self._batches.close()
        except (RuntimeError, TimeoutError):
            if not self._may_fail:
                raise
        drop(self._kept, len(self._kept))
        self._children.wait()

    def _join(self) -> None:
        self._batches = subscribe(NAME, timeout=_JOIN_S)
        find = self._batches._window

        def find_late(number: int) -> Any:
            """Be given up between the word of a batch and its copy, which is torn then."""
            if self._draws(self._case.sleeps):
                self._sleep()
            return find(number)

        self._batches._window = find_late  # type: ignore[method-assign]

    def _draws(self, one_in: int) -> bool:
        return one_in > 0 and self._chance.randrange(one_in) == 0

    def _read_epoch(self) -> None:
        place = -1
        for place, batch in enumerate(self._batches):
            self._keep(batch, place)
            del batch
            if self._draws(self._case.forks):
                self._children.fork(self._be_a_child)
            if self._draws(self._case.abandons):
                self._give_up()
                return
        if place != count_of(self._case) - 1:
            raise Wrong(f"an epoch ended after {place + 1} batches")

    def _give_up(self) -> None:
        """Break the epoch off: read the next one, or leave and come back."""
        if self._chance.random() < 0.5:
            return
        self._may_fail = True  # it may be too late for the last epoch, or for any
        self._batches.close()
        if self._epoch < EPOCHS - 1:
            self._join()

    def _sleep(self) -> None:
        """Let the others wait for longer than the publisher has patience."""
        self._may_fail = True
        self._door.sleep(2.5 * PATIENCE_S)

    def _keep(self, batch: Any, place: int) -> None:
        if not isinstance(batch, numpy.ndarray):
            raise Wrong(f"{batch!r} came as a batch")
        count = count_of(self._case)
        if place == 0:
            epoch = math.isqrt(int(batch[0])) // count
            if not self._epoch < epoch < EPOCHS:
                raise Wrong(f"epoch {epoch} came after {self._epoch}")
            self._epoch = epoch
        wanted = expected(request_of(self._case, self._epoch * count + place), 1, 0)
        self._taken += 1
        kept = Kept(batch, wanted, self._taken + self._chance.randint(0, self._case.keeps))
        kept.check("when it comes")
        kept.array += 1  # nobody else sees it
        kept.wanted = wanted + 1
        self._kept.append(kept)
        drop(self._kept, sum(each.until <= self._taken for each in self._kept))

    def _be_a_child(self) -> None:
        """Look at what was inherited, again and again, while the parent goes on or dies."""
        for _ in range(self._chance.randint(1, 40)):
            self._door.line(1)
            for kept in self._kept:
                kept.check("in a child")
        try:
            iter(self._batches)
        except RuntimeError:
            return
        raise Wrong("a child could read what its parent has subscribed to")
