"""What is checked: the programs that must hold, and the mistakes that must be found in them."""

from __future__ import annotations

from dataclasses import dataclass

PROGRAMS = (
    "ring_push_pop",
    "ring_reuse",
    "doorbell",
    "order",
    "grant",
    "lease_end",
    "released",
    "closed",
    "round",
    "generation",
)


@dataclass(frozen=True)
class Mistake:
    """
    A change to a program that must be found.

    Args:
        name: What is done wrong.
        program: The file that it is planted in.
        old: Text that stands there once.
        new: What takes its place.
        fault: How it shows.
    """

    name: str
    program: str
    old: str
    new: str
    fault: str


def weaker(name: str, program: str, line: str, orders: str, fault: str) -> Mistake:
    """Make a mistake of a weaker order in the line of that comment; orders is "old > new"."""
    old, new = (f"memory_order_{order}); // {line}" for order in orders.split(" > "))
    return Mistake(name, program, old, new, fault)


def relaxed(name: str, program: str, line: str, order: str, fault: str) -> Mistake:
    """Leave a memory order out."""
    return weaker(name, program, line, f"{order} > relaxed", fault)


CLOSED, FAILED = "closed-R, released-A", "released-R, closed-A"

MISTAKES = (
    relaxed("push relaxed", "ring_push_pop", "filled-R", "release", "race for slot"),
    relaxed("pop relaxed", "ring_push_pop", "filled-A", "acquire", "race for slot"),
    relaxed("push relaxed, cell", "ring_push_pop", "filled-R", "release", "outcome"),
    relaxed("read_pos relaxed", "ring_reuse", "emptied-R", "release", "outcome"),
    relaxed("room looked at relaxed", "ring_reuse", "emptied-A", "acquire", "outcome"),
    Mistake(
        "ring full, not looked at",
        "ring_reuse",
        "if (r1 == 1) {",
        "if (r1 == r1) {",
        "outcome",
    ),
    relaxed("ring relaxed", "doorbell", "rung-R", "seq_cst", "outcome"),
    relaxed("parked looked at relaxed", "doorbell", "parked-A", "seq_cst", "outcome"),
    relaxed("armed relaxed", "doorbell", "rung-A", "seq_cst", "outcome"),
    weaker("armed by a release", "doorbell", "parked-R", "seq_cst > release", "outcome"),
    weaker("rung by acquire and release", "doorbell", "rung-R", "seq_cst > acq_rel", "outcome"),
    relaxed("in force too early", "order", "ordered-R", "release", "race for request"),
    relaxed("mark loaded relaxed", "order", "ordered-A", "acquire", "race for request"),
    Mistake("mark not compared", "order", "r0 == r1 && r1 == 5", "r1 == 5", "race for request"),
    Mistake(
        "mark without a ticket",
        "order",
        "r0 == r1 && r1 == 5",
        "r0 != 0 && r1 == 5",
        "race for request",
    ),
    relaxed("granted relaxed", "grant", "granted-R", "release", "outcome"),
    relaxed("want pushed relaxed", "grant", "filled-R", "release", "outcome"),
    relaxed("alias dropped relaxed", "lease_end", "alias-R", "release", "race for slot"),
    relaxed("last alias does not acquire", "lease_end", "alias-A", "acquire", "race for slot"),
    relaxed("stack taken relaxed", "released", "released-A", "acquire", "race for slot1"),
    Mistake(
        "slot pushed relaxed",
        "released",
        "memory_order_release, memory_order_acquire); // released-R",
        "memory_order_relaxed, memory_order_acquire); // released-R",
        "race for slot1",
    ),
    weaker("closed without release", "closed", CLOSED, "acq_rel > acquire", "race for gives_back"),
    weaker("closed without acquire", "closed", CLOSED, "acq_rel > release", "race for slot"),
    relaxed("close looked at relaxed", "closed", "closed-A", "acquire", "race for gives_back"),
    relaxed("failed exchange relaxed", "closed", FAILED, "acquire", "race for gives_back"),
    relaxed("batch answered relaxed", "round", "filled-R\n  int r0", "release", "race for slot"),
    relaxed("released relaxed", "round", "released-R", "release", "race for slot"),
    relaxed("collected relaxed", "round", "released-A", "acquire", "race for slot"),
    relaxed("rung relaxed", "round", "rung-R", "seq_cst", "outcome"),
    Mistake(
        "loser keeps its page",
        "generation",
        "start = found; // the loser's page goes",
        "start = 2;",
        "outcome",
    ),
    Mistake(
        "loser keeps its number",
        "generation",
        "if (is_first == 1) { // or",
        "if (is_first == is_first) { // or",
        "outcome",
    ),
)
