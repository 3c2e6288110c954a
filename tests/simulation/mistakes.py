"""
Mistakes that are planted one at a time, to see how soon the simulation finds each.

Those of the models (tests/protocol/model/cases.py) have their names; those of history were made
once in this repository. `mistakes.diff` has them: each begins with its name, where it is from, the
mistake in words and, if the simulation cannot find it, why; then come the changes, each of lines
that stand together once in their source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MODEL = "models"


@dataclass(frozen=True)
class Edit:
    """A piece of a source, which stands there once, and what is put in its place."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mistake:
    """
    One mistake.

    Args:
        says: The mistake in words.
        edits: How it is planted.
        unseen: Why the simulation cannot find it; empty if it does.
    """

    name: str
    origin: str
    says: str
    edits: tuple[Edit, ...]
    unseen: str = ""


def _read(text: str) -> Mistake:
    about, *hunks = re.split(r"^@@ ", text, flags=re.MULTILINE)
    first, _, unseen = about.strip().partition("\n# unseen: ")
    name, origin, says = re.fullmatch(r"# (\w+), (\w+): (.*)", first).groups()  # type: ignore[union-attr]
    return Mistake(name, origin, says, tuple(map(_edit, hunks)), re.sub(r"\n#\s+", " ", unseen))


def _edit(hunk: str) -> Edit:
    path, *lines = hunk.strip("\n").splitlines()
    old, new = (
        "".join(f"{line[1:]}\n" for line in lines if line[0] in kinds) for kinds in (" -", " +")
    )
    return Edit(path, old, new)


_TEXT = Path(__file__).with_name("mistakes.diff").read_text()
MISTAKES = tuple(map(_read, _TEXT.split("\n\n")))

_BUILD = "it stands in Cython or in a header, and would take a build of its own"
_ORDER = "one process at a time is sequentially consistent: the litmus tests have it"
_THREAD = "no thread of the trainer drops a batch here: protocol/c has it"
_KEEPS = "no worker keeps an alias of a slot here: memory/ and the model have it"
_CLIENT = "which segment is used again is its client's to decide: deaths/ and memory/ have it"

# The models' mistakes that are not planted, and why.
UNPLANTED = {
    **dict.fromkeys(("ARM_LATE", "LOOK_AT_ONE", "NO_SLICE", "ARM_ONCE"), _BUILD),
    **dict.fromkeys(("RELAXED_WRITE_POS", "CELL_READ_EARLY", "READ_POS_FIRST"), _ORDER),
    **dict.fromkeys(("OFF_BY_ONE", "COMPARE_POSITIONS", "NO_LOOK_WHEN_FULL"), _BUILD),
    **dict.fromkeys(("NO_LOOK_WHEN_EMPTY", "READER_KEEPS_END"), _BUILD),
    **dict.fromkeys(("FREE_ON_FIRST_ALIAS", "COUNT_IN_TWO_STEPS", "NEXT_AFTER_PUSH"), _THREAD),
    **dict.fromkeys(("PUSH_WITHOUT_COMPARE", "UNREF_BEFORE_PUSH"), _THREAD),
    "LEASE_WITHOUT_REFERENCE": _THREAD,
    "REOPEN_UNDRAINED": "it is NO_DRAIN",
    "FREE_UNDER_CHILDREN": "it is FREE_UNDER_FORKS",
    "PIPE_CLOSED": "children are known by a mapping now, not by a pipe",
    "RECLAIM_BEFORE_REAP": "no line asks for less than a reaping, so it has no line to change",
    "RESTART_EARLY": _CLIENT,
    "PLACE_AGAIN_ANYWHERE": "the place is the model's: the code has a worker's seat for it",
    "GRANT_KEEPS_WANT": _BUILD,
    **dict.fromkeys(("LOSE_WHEN_FULL", "STUCK_WHEN_FULL"), "no user code gives up a want here"),
    **dict.fromkeys(("LEASE_KEPT", "REUSE_KEPT", "NO_COPY_IN"), _KEEPS),
}
