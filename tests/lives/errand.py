"""
A case of another client: one of the conformance suite's kinds, and what its values live through.

The values are leaves of the table and what else that suite asks for; the measure is what the same
functions make here.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.conformance import made
from tests.conformance.kinds import KINDS
from tests.conformance.sharing import arrays_in, as_array
from tests.conformance.sources import Make, Source, get
from tests.helpers.belongings import process_table
from tests.helpers.copies import Child
from tests.helpers.leaves import LEAVES
from tests.helpers.leaves.parts import are_same
from tests.lives.case import Brief, Event
from tests.lives.life import Wrong

BY_NAME = {kind.name: kind for kind in KINDS if not kind.is_slow}
# Each takes longer than a life.
LEFT_OUT = {"100,000 numbers", "20,000 texts", "PIL image of 20 MB"}
CALM = ("keep", "write", "fork", "break", "collect", "thread")
HOSTILE = ("kill", "fail")
# Their publisher ends, and with it the source.
ENDS_WITH_AN_ERROR = ("subscriber", "subscriber, pinned")
IN_PROCESS = ("SharedList", "cached")


@dataclass(frozen=True, repr=False)
class Errand(Brief):
    """
    What is asked of a source, and what happens.

    Attributes:
        kind: A name of the suite's kinds.
        epochs: The values of each epoch: "numbered N", or the name of a leaf or of made.SHARING.
        events: What happens in them, each before a value is taken.
        seed: From which it was drawn.
    """

    kind: str = "fork"
    epochs: tuple[tuple[str, ...], ...] = ()
    events: tuple[Event, ...] = ()
    seed: int = 0

    def smaller(self) -> Iterator[Errand]:
        """Yield errands that are simpler in one thing."""
        for number in range(len(self.events)):
            yield replace(self, events=self.events[:number] + self.events[number + 1 :])
        for number, epoch in enumerate(self.epochs):
            for fewer in ((), epoch[: len(epoch) // 2], epoch[1:]):
                if fewer != epoch:
                    before, after = self.epochs[:number], self.epochs[number + 1 :]
                    yield replace(self, epochs=(*before, fewer, *after))


def draw(seed: int) -> Errand:
    """Draw an errand."""
    chance = random.Random(seed)
    kind = chance.choice([*BY_NAME])
    leaves = [
        name
        for name, leaf in LEAVES.items()
        if leaf.context is None and name not in LEFT_OUT and not leaf.missing()
    ]
    names = [*(make.__name__ for make in made.SHARING), *chance.sample(leaves, 6)]
    names += [f"numbered {number}" for number in range(60)]
    epochs = [
        tuple(chance.choices(names, k=chance.choice((0, 1, 2, 5, 9, 20))))
        for _ in range(chance.choice((1, 2, 3, 4)))
    ]
    kinds = [*CALM, *(() if kind in (*ENDS_WITH_AN_ERROR, *IN_PROCESS) else HOSTILE)]
    events = tuple(
        Event(chance.choice(kinds), chance.randrange(len(epochs)), chance.choice((0, 1, 2, 5, 99)))
        for _ in range(chance.choice((0, 1, 2, 3, 5)))
    )
    return Errand(kind, tuple(epochs), events, seed)


def make_of(name: str) -> Make:
    """Returns the function that makes a value."""
    if name.startswith("numbered "):
        return functools.partial(made.numbered, int(name.split()[1]))
    if name in LEAVES:
        return functools.partial(made.leaf, name)
    return getattr(made, name)  # type: ignore[no-any-return]


def is_right(name: str, value: Any) -> bool:
    """Returns True if a value is what is made by that name."""
    if name.startswith("numbered "):
        return made.is_numbered(value, int(name.split()[1]))
    if name in LEAVES:
        return are_same(made.leaf(name), value)
    wanted, found = arrays_in(make_of(name)()), arrays_in(value)
    return [as_array(each).tolist() for each in wanted] == [
        as_array(each).tolist() for each in found
    ]


class Walk:
    """A source from its birth to its end, each of its values compared."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.kept: list[tuple[str, Any]] = []
        self.children: list[tuple[Child, int]] = []

    def run(self) -> None:
        """Walk to the end, or raise Wrong."""
        has_restarts = any(event.what == "kill" for event in self.errand.events)
        options = {"restarts": 50} if has_restarts else {}
        source = BY_NAME[self.errand.kind].open(**options)
        try:
            for epoch, names in enumerate(self.errand.epochs):
                self._walk(source, epoch, names)
        finally:
            source.close()
            self._end_children()
        self._check_kept("after the end")

    def _walk(self, source: Source, epoch: int, names: tuple[str, ...]) -> None:
        values = source.many([make_of(name) for name in names])
        for came, name in enumerate(names):
            happening = self._events(epoch, came)
            if "break" in happening:
                next(values, None)  # a subscriber that has taken nothing has begun no epoch
                return
            if "thread" in happening:
                self._take_on_a_thread(values, names[came:])
                return
            self._happen(happening)
            value = next(values, None)
            if not is_right(name, value):
                raise Wrong(f"epoch {epoch}, value {came}: {name!r} is {value!r:.300}")
            if "keep" in happening:
                self.kept.append((name, value))
            elif "write" in happening and name not in LEAVES:  # not all of those are arrays
                self._write(value)
        if [*values]:
            raise Wrong(f"epoch {epoch} has more than {len(names)} values")
        if "fail" in self._events(epoch, None):
            self._fail(source)
        self._check_kept(f"after epoch {epoch}")

    def _events(self, epoch: int, came: int | None) -> set[str]:
        """Returns what happens before a value is taken; None: behind the last one."""
        count = len(self.errand.epochs[epoch])
        return {
            event.what
            for event in self.errand.events
            if event.epoch == epoch and (event.batch if event.batch < count else None) == came
        }

    def _happen(self, happening: set[str]) -> None:
        for what in sorted(happening & {"collect", "fork", "kill"}):
            {"collect": gc.collect, "fork": self._fork, "kill": self._kill}[what]()

    def _take_on_a_thread(self, values: Iterator[Any], names: tuple[str, ...]) -> None:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(values))
        thread.start()
        thread.join()
        if len(found) != len(names) or not all(map(is_right, names, found)):
            raise Wrong(f"on a thread came {found!r:.300}")

    def _write(self, value: Any) -> None:
        for part in arrays_in(value):
            if as_array(part).flags.writeable:
                as_array(part).fill(0)

    def _fail(self, source: Source) -> None:
        try:
            value = get(source, made.SHAPES_OF_ERRORS["plain"])
        except LookupError:
            return
        raise Wrong(f"an error came as {value!r:.300}")

    def _fork(self) -> None:
        go, told = os.pipe()
        self.children.append((Child(self._wait_and_check, go, told), told))
        os.close(go)

    def _wait_and_check(self, go: int, told: int) -> None:
        os.close(told)
        os.read(go, 1)
        self._check_kept("in a forked child")

    def _end_children(self) -> None:
        for _, told in self.children:  # a later child has the earlier ones' ends open
            os.close(told)
        for child, _ in self.children:
            child.end()

    def _kill(self) -> None:
        """Kill a process that was started for the source, but none that this life has forked."""
        ours = {child.pid for child, _ in self.children}
        found = [
            pid
            for pid, process in process_table().items()
            if process.parent == os.getpid() and pid not in ours
        ]
        if found:
            os.kill(found[0], signal.SIGKILL)

    def _check_kept(self, when: str) -> None:
        for name, value in self.kept:
            if not is_right(name, value):
                raise Wrong(f"{when}: {name!r}, which was kept, is {value!r:.300}")
