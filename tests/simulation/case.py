"""What a run is: how many processes, what the user does, who dies, and how seldom turns change."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

LATE = 1 << 62


@dataclass(frozen=True)
class Case:
    """
    One run; all of its choices come from its seed and these numbers.

    Attributes:
        workers, slots, answers: How many; answers of `length` numbers each at most.
        ahead: How many requests are under way.
        keeps: For how many more answers one is kept, at most.
        leaves_after: Workers leave after so many answers; 0: they stay.
        ring_kilobytes: The bound on all pages.
        grows: Late drops make more slots.
        tells, abandons, forgets, forks: One answer in so many is followed by that; 0: none is.
        deaths: At which events a process is killed, a worker or the nursery.
        restarts: How many deaths are healed; 0: the first is an error.
        switch_one_in: One step in so many gives the turn away.
        fire_one_in: One choice in so many lets a deadline come early; 0: none.
        slow: A bit for each process that is seldom chosen.
        has_views: Turns are given away at the steps of views, too.
        has_lines: Turns are given away between lines of Python, too.
        interrupts: At which of the trainer's lines an exception arrives.
        is_guarded: SHMLOADER_DEBUG: the ledger is audited at each move.
        switches: The events between which turns are given away; for smaller cases.
    """

    seed: int
    workers: int = 2
    slots: int = 8
    answers: int = 20
    length: int = 600
    ahead: int = 4
    keeps: int = 3
    leaves_after: int = 0
    ring_kilobytes: int = 1 << 16
    grows: bool = False
    tells: int = 0
    abandons: int = 0
    forgets: int = 0
    forks: int = 0
    deaths: tuple[int, ...] = ()
    restarts: int = 0
    switch_one_in: int = 8
    fire_one_in: int = 0
    slow: int = 0
    has_views: bool = False
    has_lines: bool = False
    interrupts: tuple[int, ...] = ()
    is_guarded: bool = False
    switches: tuple[int, int] = (0, LATE)

    def says(self) -> str:
        """The case as an expression, without what is as usual."""
        usual = Case(self.seed)
        parts = [f"seed={self.seed}"]
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value != getattr(usual, name):
                parts.append(f"{name}={value!r}")
        return f"Case({', '.join(parts)})"


def draw(seed: int) -> Case:
    """Draw a case."""
    chance = random.Random(seed)
    workers = chance.choice((1, 2, 2, 2, 3))
    case = Case(
        seed,
        workers=workers,
        slots=chance.choice((3, 4, 6, 8, 8)),
        length=chance.choice((1, 600, 600, 5000)),
        ahead=chance.choice((1, 2, 4, 6)),
        keeps=chance.choice((0, 1, 3, 8)),
        leaves_after=chance.choice((0, 0, 0, 4)),
        grows=chance.random() < 0.2,
        switch_one_in=chance.choice((1, 2, 4, 8, 32, 128)),
        fire_one_in=chance.choice((0, 0, 16, 64)),
        slow=chance.choice((0, 0, 1, 2, 4, 8)),
        has_views=chance.random() < 0.1,
        is_guarded=chance.random() < 0.33,
    )
    for draws in (_draw_use, _draw_deaths, _draw_lines):
        case = draws(case, chance)
    return case


def _draw_use(case: Case, chance: random.Random) -> Case:
    """What else the user does: one thing in most runs, nothing in the others."""
    other = chance.choice(("", "", "tells", "tells", "abandons", "forgets", "forks"))
    if other:
        case = replace(case, **{other: chance.choice((3, 6))})
    if chance.random() < 0.2:  # more than there is room for
        case = replace(case, length=20_000, ring_kilobytes=chance.choice((256, 512)))
    return case


def _draw_deaths(case: Case, chance: random.Random) -> Case:
    if chance.random() < 0.6:
        return case
    count = chance.choice((1, 1, 2, 3))
    deaths = tuple(sorted(chance.randrange(1500 * case.workers) for _ in range(count)))
    return replace(case, deaths=deaths, restarts=count + 1 if chance.random() < 0.9 else 0)


def _draw_lines(case: Case, chance: random.Random) -> Case:
    """Let turns change, and deaths and interrupts come, between lines of Python in some runs."""
    if chance.random() < 0.9:
        return case
    case = replace(case, has_lines=True, deaths=tuple(4 * death for death in case.deaths))
    if not case.tells and chance.random() < 0.5:
        interrupts = (chance.randrange(3000) for _ in range(chance.randint(1, 3)))
        case = replace(case, interrupts=tuple(sorted(interrupts)))
    return case
