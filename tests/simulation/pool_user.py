"""The trainer's program of a run with a pool: a user who maps, takes results and keeps them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy

from shmloader.pool import executor
from shmloader.pool.executor import Pool
from tests.simulation import called
from tests.simulation.case import Case
from tests.simulation.checks import TAKE_WITHIN_S, Children, Kept, Wrong, check_settled, drop
from tests.simulation.door import Door
from tests.simulation.lines import Lines
from tests.simulation.waits import Waits

_MAPS = 3  # at a time
_LONGEST = 8  # items of a map
_FAILS = object()  # in place of a result, the error of its call


@dataclass
class Mapped:
    """A map: its results, and what they must be, in order."""

    results: Iterator[Any]
    wanted: deque[Any]

    def take(self) -> Any:
        """Take the next result. Returns None if there is none, as it must be."""
        wanted = self.wanted.popleft() if self.wanted else None
        try:
            result = next(self.results, None)
        except LookupError:
            if wanted is not _FAILS:
                raise
            return None
        if wanted is _FAILS or (result is None) != (wanted is None):
            raise Wrong(f"{result!r} came as a result, and not {wanted!r}")
        return None if result is None else (result, wanted)


class PoolUser:
    """Plays one case in this process, the caller of a pool."""

    def __init__(self, case: Case, door: Door, waits: Waits, lines: Lines) -> None:
        self._case, self._door = case, door
        self._chance = random.Random(case.seed)
        self._maps: list[Mapped] = []
        self._kept: list[Kept] = []
        self._children = Children(door, waits)
        self._asked = self._taken = 0
        self._pool: Pool

    def play(self) -> None:
        """Run from the first map to the end of the workers."""
        case = self._case
        executor._numbers = itertools.count()  # they stand in requests: of each run the same
        self._pool = Pool(
            case.workers,
            "fork",
            max_tasks_per_child=case.leaves_after or None,
            slots=None if case.grows else case.slots,
            ring_bytes=case.ring_kilobytes << 10,
            restarts=case.restarts,
        )
        try:
            if self._use_until_told():
                drop(self._kept, len(self._kept))
                self._settle()
        finally:
            self._maps.clear()
            self._kept.clear()
            self._pool.shutdown()
            if self._pool._engine.crew is not None:
                raise Wrong("the pool was not closed")
        self._children.wait()

    def _use_until_told(self) -> bool:
        """Use it. Returns False if that ended with the error of a death that nothing heals."""
        try:
            while self._asked < self._case.answers or self._maps:
                self._use()
        except BrokenProcessPool:
            if self._case.restarts or not self._case.may_end:
                raise
            return False
        return True

    def _use(self) -> None:
        while self._asked < self._case.answers and len(self._maps) < _MAPS:
            self._maps.append(self._begin())
            if self._chance.random() < 0.5:
                break
        mapped = self._chance.choice(self._maps)
        taken = mapped.take()
        if taken is None:
            self._maps.remove(mapped)
        else:
            self._keep(*taken)
        self._do_something_else()

    def _begin(self) -> Mapped:
        """Begin a map of some items."""
        chance, case = self._chance, self._case
        count = min(chance.randint(1, _LONGEST), case.answers - self._asked)
        # A call and its result stand in one slot, which has room for the ring at most.
        most = case.length if case.ring_kilobytes > 1024 else min(case.length, 12_000)
        chunk = chance.choice((1, 1, 2, 3)) if most <= 5000 else 1
        starts = range(self._asked, self._asked + count)
        self._asked += count
        lengths = [chance.randint(1, most) for _ in starts]
        function = chance.choice((called.squared, called.doubled, called.returned, called.failing))
        rows, wanted = _of(function, starts, lengths)
        _leave_out_after_failure(wanted, chunk)
        results = self._pool.map(
            function,
            *zip(*rows, strict=True),
            chunksize=chunk,
            buffersize=chance.choice((None, 1, 2, 4)),
        )
        return Mapped(results, wanted)

    def _keep(self, result: Any, wanted: numpy.ndarray) -> None:
        if not isinstance(result, numpy.ndarray):
            raise Wrong(f"{result!r} came as a result")
        self._taken += 1
        kept = Kept(result, wanted, self._taken + self._chance.randint(0, self._case.keeps))
        kept.check("when it comes")
        self._kept.append(kept)
        drop(self._kept, sum(each.until <= self._taken for each in self._kept))

    # What else a user does

    def _do_something_else(self) -> None:
        for one_in, act in ((self._case.abandons, self._abandon), (self._case.forks, self._fork)):
            if one_in and self._chance.randrange(one_in) == 0:
                act()

    def _abandon(self) -> None:
        """Give a map up: what is left of it is not called, or its results are dropped."""
        if self._maps:
            mapped = self._maps.pop(self._chance.randrange(len(self._maps)))
            mapped.results.close()  # type: ignore[attr-defined]

    def _fork(self) -> None:
        self._children.fork(self._be_a_child)

    def _be_a_child(self) -> None:
        """Look at what was inherited, again and again, and find that the pool is the parent's."""
        for _ in range(self._chance.randint(1, 40)):
            self._door.line(1)
            for kept in self._kept:
                kept.check("in a child")
        drop(self._kept, len(self._kept) // 2)
        with contextlib.suppress(RuntimeError):
            self._pool.map(called.squared, [1], [1])
            raise Wrong("a child could use the pool of its parent")

    # The end

    def _settle(self) -> None:
        """All results were taken: wait until what was given up is answered, and count the slots."""
        engine = self._pool._engine
        if engine.crew is None:
            return
        gc.collect()  # the traceback of a call's error holds the results that come behind it
        deadline_s = self._door.now_s() + TAKE_WITHIN_S
        engine._lead_until(lambda: not (engine._sent or engine._calls), deadline_s)
        if engine._sent or engine._calls or engine._rests:
            raise Wrong("calls that were given up are not over")
        if engine.broken is None:
            check_settled(engine.crew.transport)
        elif not self._case.may_end or self._case.restarts:
            raise Wrong(f"the pool broke without a cause: {engine.broken}")
        # Else the slot of the call that broke it comes back when the other workers are ended.


def _of(function: Any, starts: range, lengths: list[int]) -> tuple[list[Any], deque[Any]]:
    """Make the rows of arguments of a map, and its results."""
    arrays = [
        numpy.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)
    ]
    if function is called.doubled:
        return [(array,) for array in arrays], deque(array * 2 for array in arrays)
    if function is called.returned:
        return [(array,) for array in arrays], deque(arrays)
    fails = function is called.failing
    wanted = (_FAILS if fails and array[0] % 7 == 3 else array**2 for array in arrays)
    return list(zip(starts, lengths, strict=True)), deque(wanted)


def _leave_out_after_failure(wanted: deque[Any], chunk: int) -> None:
    """A call that fails fails its chunk, and ends its map."""
    first = next((place for place, each in enumerate(wanted) if each is _FAILS), None)
    if first is None:
        return
    while len(wanted) > first // chunk * chunk:
        wanted.pop()
    wanted.append(_FAILS)
