"""The programs, the sources of csrc/ that each runs, and the mistakes that are planted there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.helpers.kill_steps import ROOT


@dataclass(frozen=True)
class Program:
    """
    One program.

    Attributes:
        sources: Files of csrc/; of those with functions named, only these are taken.
        mistakes: By name, what is planted: a piece of those sources and what replaces it, once.
    """

    sources: dict[str, tuple[str, ...]]
    mistakes: dict[str, tuple[str, str]]


_WRITE_POS = "atomic_store_explicit(&ring->write_pos, end->write_pos, memory_order_release)"
_WRITE_POS_SEEN = "atomic_load_explicit(&end->ring->write_pos, memory_order_acquire)"
_RUNG = "atomic_fetch_add_explicit(&bell->rings, 1, memory_order_seq_cst)"
_IS_PARKED = "atomic_load_explicit(&bell->parked, memory_order_seq_cst)"
_PARKED = "atomic_store_explicit(&bell->parked, 1, memory_order_seq_cst)"
_ARMED = "return atomic_load_explicit(&bell->rings, memory_order_seq_cst)"
_DROPPED = "atomic_fetch_sub_explicit(&lease->aliases, 1, memory_order_release)"
_ALL_DROPPED = "(void)atomic_load_explicit(&lease->aliases, memory_order_acquire)"
_PUSHED = "memory_order_release, memory_order_acquire"
_COLLECTED = "atomic_exchange_explicit(&ledger->released, 0, memory_order_acquire)"


def _relaxed(piece: str) -> tuple[str, str]:
    return piece, re.sub("memory_order_(release|acquire|seq_cst)", "memory_order_relaxed", piece)


def _acquires(piece: str) -> tuple[str, str]:
    return piece, piece.replace("seq_cst", "acquire")


PROGRAMS = {
    "ring": Program(
        {"ring.h": ()},
        {
            "FILLED_RELEASE": _relaxed(_WRITE_POS),
            "FILLED_ACQUIRE": _relaxed(_WRITE_POS_SEEN),
        },
    ),
    "doorbell": Program(
        {"ring.h": (), "doorbell.h": (), "doorbell.c": ()},
        {
            "RUNG_RELEASE": (_RUNG, _RUNG.replace("seq_cst", "release")),
            "IS_PARKED_ACQUIRE": _acquires(_IS_PARKED),
            "PARKED_RELEASE": (_PARKED, _PARKED.replace("seq_cst", "release")),
            "ARMED_ACQUIRE": _acquires(_ARMED),
            "NO_WAKE": ("platform_unpark(&bell->rings)", "(void)0"),
        },
    ),
    "lease": Program(
        {"lease.h": (), "ledger.c": ("push_released", "free_released", "ledger_collect")},
        {
            "ALIAS_RELEASE": _relaxed(_DROPPED),
            "ALIAS_ACQUIRE": _relaxed(_ALL_DROPPED),
            "RELEASED_RELEASE": (_PUSHED, _PUSHED.replace("release", "relaxed")),
            "RELEASED_ACQUIRE": _relaxed(_COLLECTED),
            "COLLECT_IN_TWO_STEPS": (
                "head = " + _COLLECTED,
                "head = atomic_load_explicit(&ledger->released, memory_order_acquire);\n"
                "  atomic_store_explicit(&ledger->released, 0, memory_order_relaxed)",
            ),
        },
    ),
    "generation": Program(
        {"generation.c": ()},
        {
            "NUMBER_OF_ITS_OWN": ("return is_first ? next : found", "return next"),
            "PAGE_OF_ITS_OWN": ("  return found;\n}\n\nstatic", "  return made;\n}\n\nstatic"),
        },
    ),
}


def source_of(program: Program, mistake: str = "") -> str:
    """Make the C++ that stands in a program's class, with a mistake in it if one is named."""
    text = "\n".join(_taken(file, names) for file, names in program.sources.items())
    if mistake:
        old, new = program.mistakes[mistake]
        assert text.count(old) == 1, f"not once in the sources: {old}"
        text = text.replace(old, new)
    return _as_cpp(text)


def _taken(file: str, functions: tuple[str, ...]) -> str:
    text = (ROOT / "csrc" / file).read_text()
    pieces = (rf"^[\w ]+ {name}\([^;{{]*\) {{\n.*?^}}\n" for name in functions)
    found = [re.search(piece, text, re.M | re.S) for piece in pieces]
    assert None not in found, f"csrc/{file} has not all of {functions}"
    return "\n".join(match[0] for match in found if match) if functions else text


def _as_cpp(text: str) -> str:
    """Let C11 be C++ in the body of a class."""
    text = re.sub(r"^#.*(\\\n.*)*\n", "", text, flags=re.M)
    text = re.sub(r"^_Static_assert\(.*?\);\n", "", text, flags=re.M | re.S)
    text = re.sub(r"^\w[\w ]* \*?\w+\([^;{]*\);\n", "", text, flags=re.M)  # declarations
    text = re.sub(r"\b_Atomic (\w+)", r"shared<\1>", text)
    text = re.sub(r"\balignas\(\w+\) ", "", text)
    text = re.sub(r"^(static )?(inline )?", "", text, flags=re.M)
    return text.replace("cells[];", "cells[CELLS];")
