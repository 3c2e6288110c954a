"""What a run is: how many processes, what the user does, who dies, and how seldom turns change."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, replace

from tests.helpers.kill_steps import names
from tests.lives.case import Brief


@dataclass(frozen=True, repr=False)
class Case(Brief):
    """
    One run; all of its choices come from its seed and these numbers.

    Attributes:
        client: "squares", the transport's own client of `transport/`; "seats", the same with
            workers that come and go; "pool", a `Pool`'s maps; or "publisher", of whose answers each
            goes to `subscribers` processes.
        workers, slots, answers: How many; answers of `length` numbers each at most.
        seats: Of workers that come and go, how many there may be; `workers` of them begin.
        changes: One answer in so many is followed by one or two more workers, or fewer.
        strikes: At which change a worker that has come, or is let go, is killed; 0: at none.
        ahead: How many requests are under way.
        keeps: For how many more answers one is kept, at most.
        leaves_after: Workers leave after so many answers; 0: they stay.
        ring_kilobytes: The bound on all pages.
        grows: Late drops make more slots.
        tells, abandons, forgets, forks: One answer in so many is followed by that; 0: none is.
        reacts: So is each answer by which the trainer knows of one more death.
        subscribers: Of a publisher, how many; each keeps, forks, and breaks epochs off (abandons).
        fences: A device reads the answers of "squares", which are dropped before it has.
        sleeps: One batch in so many, a subscriber is given up before it copies it; 0: none is.
        lives: 2: at half of the answers the user gives up, and starts again in the same segment.
        deaths: At which events a process is killed, a worker or the nursery.
        dies_at: A step, and when it is passed so often, one more is.
        restarts: How many deaths are healed; 0: the first is an error.
        switch_one_in: One step in so many gives the turn away.
        fire_one_in: One choice in so many lets a deadline come early; 0: none.
        slow: A bit for each process that is seldom chosen.
        looks: Every process looks for news before it parks, as if there were cores for all.
        has_views: Turns are given away at the steps of views, too.
        has_lines: Turns are given away between lines of Python, too.
        interrupts: Before which of the trainer's bytecodes an exception arrives.
        is_guarded: SHMLOADER_DEBUG: the ledger is audited at each move.
        scribbles: A word of a peer that was copied out is overwritten at once, as if by that peer.
        forges_at: The event at which a worker writes a cell of nonsense and dies; 0: none does.
    """

    seed: int
    client: str = "squares"
    workers: int = 2
    slots: int = 8
    answers: int = 20
    seats: int = 0
    changes: int = 0
    strikes: int = 0
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
    reacts: bool = False
    fences: bool = False
    subscribers: int = 2
    sleeps: int = 0
    lives: int = 1
    deaths: tuple[int, ...] = ()
    dies_at: tuple[str, int] = ("", 0)
    restarts: int = 0
    switch_one_in: int = 8
    fire_one_in: int = 0
    slow: int = 0
    looks: bool = False
    has_views: bool = False
    has_lines: bool = False
    interrupts: tuple[int, ...] = ()
    is_guarded: bool = False
    scribbles: bool = False
    forges_at: int = 0

    @property
    def may_end(self) -> bool:
        """True if a process may die, which is an error without restarts."""
        return bool(self.deaths or self.dies_at[0] or self.forges_at)

    @property
    def places(self) -> int:
        """How many workers there may be at a time."""
        return self.seats or self.workers


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
    for draws in (_draw_client, _draw_use, _draw_deaths, _draw_lines, _draw_how, _draw_seats):
        case = draws(case, chance)
    return case


def _draw_client(case: Case, chance: random.Random) -> Case:
    """Let some runs be a pool's, or a publisher's; in some of the others each wake is needed."""
    client = chance.random()
    if client < 0.2:
        return replace(case, client="pool", slots=max(case.slots, case.workers))
    if client < 0.3:
        return replace(case, client="publisher", subscribers=chance.choice((1, 2, 2, 3)))
    return replace(case, workers=1, ahead=1) if chance.random() < 0.15 else case


def _draw_use(case: Case, chance: random.Random) -> Case:
    """What else the user does: one thing in most runs, nothing in the others."""
    others = ("tells", "tells", "abandons", "forgets", "forks")
    if case.client == "pool":
        others = ("abandons", "forks", "forks")
    if case.client == "publisher":
        others = ("abandons", "forks", "sleeps", "sleeps")
    other = chance.choice(("", "", *others))
    if other:
        case = replace(case, **{other: chance.choice((3, 6))})
    if chance.random() < 0.2:  # more than there is room for
        case = replace(case, length=20_000, ring_kilobytes=chance.choice((256, 512)))
    if case.client == "squares" and chance.random() < 0.12:
        case = replace(case, lives=2)
    later = random.Random(f"{case.seed} fences")  # drawn apart: what seeds were before stays
    reads = later.random() < 0.2 and case.client == "squares" and not case.is_guarded
    return replace(case, fences=reads, looks=later.random() < 0.4)


def _draw_deaths(case: Case, chance: random.Random) -> Case:
    """Let processes die, in half of the runs; some before the last death is healed."""
    if chance.random() < (0.4 if case.ring_kilobytes < 1024 else 0.6):
        return case
    count = chance.choice((0, 1, 1, 2, 3))
    deaths = [chance.randrange(1500 * case.workers) for _ in range(count)]
    if count > 1 and chance.random() < 0.5:
        deaths = [deaths[0] + chance.randrange(120) for _ in range(count)]
    case = replace(case, deaths=tuple(sorted(deaths)), reacts=chance.random() < 0.5)
    if count == 0 or chance.random() < 0.3:  # of the steps that are seldom passed, too
        step = chance.choice(_steps()), chance.choice((1, 1, 2, 3, 5, 8, 20))
        case, count = replace(case, dies_at=step), count + 1
    return replace(case, restarts=count + 1 if chance.random() < 0.9 else 0)


@functools.cache
def _steps() -> list[str]:
    return names()


def _draw_lines(case: Case, chance: random.Random) -> Case:
    """Let turns change, and deaths and interrupts come, between lines of Python in some runs."""
    if chance.random() < 0.865 or case.sleeps:  # for so long a publisher passes too many lines
        return case
    case = replace(case, has_lines=True, deaths=tuple(4 * death for death in case.deaths))
    is_simple = case.client == "squares" and not case.tells and case.lives == 1
    if is_simple and chance.random() < 0.8:
        interrupts = [chance.randrange(6000) for _ in range(chance.randint(1, 6))]
        if chance.random() < 0.5:  # some bytecodes are passed once in a batch
            interrupts = [*range(chance.randrange(400), 6000, chance.randint(60, 400))]
        case = replace(case, interrupts=tuple(sorted(interrupts)))
    return case


def _draw_how(case: Case, chance: random.Random) -> Case:
    may_forge = case.client == "squares" and not case.has_lines
    if may_forge and chance.random() < 0.15:
        case = replace(case, forges_at=chance.randrange(50, 1000))
    return replace(case, scribbles=chance.random() < 0.25)


def _draw_seats(case: Case, chance: random.Random) -> Case:
    """Let workers come and go in some runs of those that are left."""
    later = random.Random(f"{case.seed} seats")  # drawn apart, as fences
    if later.random() > 0.4 or case.client != "squares" or case.fences or case.lives > 1:
        return case
    seats = max(case.workers, later.choice((2, 3, 4)))
    case = replace(case, client="seats", seats=seats, changes=later.choice((1, 1, 2, 4)))
    if later.random() < 0.5 and (case.restarts or not case.may_end):
        case = replace(case, strikes=later.randint(1, 8), restarts=case.restarts + 1)
    return case
