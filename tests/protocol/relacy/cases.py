"""What relacy explores, and the mistakes that it must find, named as those of the litmus tests."""

from __future__ import annotations

from dataclasses import dataclass

PROGRAMS = ("ring", "doorbell", "lease", "generation")

RACE = "DATA RACE"
ASSERTION = "USER ASSERT FAILED"
DEADLOCK = "DEADLOCK"


@dataclass(frozen=True)
class Mistake:
    """
    A change to a source that must be found.

    Args:
        name: What is done wrong.
        program: The program that finds it.
        source: The source that it is planted in.
        old: Text that stands there once.
        new: What takes its place.
        fault: What relacy says.
    """

    name: str
    program: str
    source: str
    old: str
    new: str
    fault: str


def weaker(name: str, where: tuple[str, str], line: str, orders: str, fault: str = RACE) -> Mistake:
    """Make a mistake of a weaker order behind this text of a line; orders is "old > new"."""
    program, source = where
    old, new = (f"memory_order_{order}" for order in orders.split(" > "))
    return Mistake(name, program, source, f"{line}{old}", f"{line}{new}", fault)


RING = ("ring", "ring.h")
BELL = ("doorbell", "doorbell.c")
LEASE = ("lease", "lease.h")
RELEASED = ("lease", "released.c")
GENERATION = ("generation", "generation.c")

ROOM = "end->read_pos_seen = atomic_load_explicit(&ring->read_pos, "
RUNG = "(&bell->rings, 1, "
PUSHED = "&ledger->released, &head, slot + 1,\n" + " " * 46
CLOSED = "&ledger->released, RELEASED_CLOSED,\n" + " " * 51
CLOSE_SEEN = "uint32_t head = atomic_load_explicit(&ledger->released, "
FULL = "if (end->write_pos - end->read_pos_seen > end->mask) return false;"

MISTAKES = (
    weaker("push relaxed", RING, "(&ring->write_pos, end->write_pos, ", "release > relaxed"),
    weaker("pop relaxed", RING, "(&end->ring->write_pos, ", "acquire > relaxed"),
    weaker("read_pos relaxed", RING, "read_pos, end->read_pos, ", "release > relaxed"),
    weaker("room looked at relaxed", RING, ROOM, "acquire > relaxed"),
    Mistake("ring full, not looked at", *RING, FULL, "", RACE),
    weaker("ring relaxed", BELL, RUNG, "seq_cst > relaxed", DEADLOCK),
    weaker("rung by acquire and release", BELL, RUNG, "seq_cst > acq_rel", DEADLOCK),
    weaker("parked looked at relaxed", BELL, "(&bell->parked, ", "seq_cst > relaxed", DEADLOCK),
    weaker("armed by a release", BELL, "(&bell->parked, 1, ", "seq_cst > release", DEADLOCK),
    weaker("armed relaxed", BELL, "(&bell->rings, ", "seq_cst > relaxed", DEADLOCK),
    weaker("alias dropped relaxed", LEASE, "(&lease->aliases, 1, ", "release > relaxed"),
    weaker(
        "last alias does not acquire",
        LEASE,
        "(void)atomic_load_explicit(&lease->aliases, ",
        "acquire > relaxed",
    ),
    weaker("stack taken relaxed", RELEASED, "(&ledger->released, 0, ", "acquire > relaxed"),
    weaker("slot pushed relaxed", RELEASED, PUSHED, "release > relaxed"),
    weaker("closed without release", RELEASED, CLOSED, "acq_rel > acquire"),
    weaker("closed without acquire", RELEASED, CLOSED, "acq_rel > release"),
    weaker("close looked at relaxed", RELEASED, CLOSE_SEEN, "acquire > relaxed"),
    weaker(
        "failed exchange relaxed",
        RELEASED,
        PUSHED + "memory_order_release, ",
        "acquire > relaxed",
    ),
    Mistake("loser keeps its page", *GENERATION, "return found;\n", "return made;\n", ASSERTION),
    Mistake("loser keeps its number", *GENERATION, "is_first ? next : found", "next", ASSERTION),
)
