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


def relaxed(name: str, program: str, line: str, order: str, fault: str) -> Mistake:
    """A memory order left out of a line that is named by its comment."""
    old = f"memory_order_{order}); // {line}"
    return Mistake(name, program, old, f"memory_order_relaxed); // {line}", fault)


MISTAKES = (
    relaxed("push relaxed", "ring_push_pop", "filled-R", "release", "race for slot"),
    relaxed("pop relaxed", "ring_push_pop", "filled-A", "acquire", "race for slot"),
    relaxed("push relaxed, cell", "ring_push_pop", "filled-R", "release", "outcome"),
    relaxed("read_pos relaxed", "ring_reuse", "emptied-R", "release", "outcome"),
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
    Mistake(
        "armed by a release",
        "doorbell",
        "seq_cst); // parked-R",
        "release); // parked-R",
        "outcome",
    ),
    Mistake(
        "rung by acquire and release",
        "doorbell",
        "seq_cst); // rung-R",
        "acq_rel); // rung-R",
        "outcome",
    ),
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
    Mistake(
        "alias dropped relaxed",
        "lease_end",
        "memory_order_release); // alias-R",
        "memory_order_relaxed); // alias-R",
        "race for slot",
    ),
    relaxed("last alias does not acquire", "lease_end", "alias-A", "acquire", "race for slot"),
    relaxed("stack taken relaxed", "released", "released-A", "acquire", "race for slot1"),
    Mistake(
        "slot pushed relaxed",
        "released",
        "memory_order_release, memory_order_acquire); // released-R",
        "memory_order_relaxed, memory_order_acquire); // released-R",
        "race for slot1",
    ),
    Mistake(
        "closed without release",
        "closed",
        "memory_order_acq_rel); // closed-R, released-A",
        "memory_order_acquire); // closed-R, released-A",
        "race for gives_back",
    ),
    Mistake(
        "closed without acquire",
        "closed",
        "memory_order_acq_rel); // closed-R, released-A",
        "memory_order_release); // closed-R, released-A",
        "race for slot",
    ),
    relaxed("close looked at relaxed", "closed", "closed-A", "acquire", "race for gives_back"),
    Mistake(
        "failed exchange relaxed",
        "closed",
        "memory_order_acquire); // released-R, closed-A",
        "memory_order_relaxed); // released-R, closed-A",
        "race for gives_back",
    ),
    Mistake(
        "batch answered relaxed",
        "round",
        "memory_order_release); // filled-R\n  int r0",
        "memory_order_relaxed); // filled-R\n  int r0",
        "race for slot",
    ),
    relaxed("released relaxed", "round", "released-R", "release", "race for slot"),
    relaxed("collected relaxed", "round", "released-A", "acquire", "race for slot"),
    relaxed("rung relaxed", "round", "rung-R", "seq_cst", "outcome"),
)
