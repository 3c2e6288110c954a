"""Our C sources as C++ for relacy: the type of each atomic word, and nothing else, is another."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[2] / "csrc"
RELACY = Path("/usr/include/relacy/relacy.hpp")
MISSING = "relacy is missing (apt-get install relacy-dev)"

# What a slot's release is, in ledger.c, which does much besides.
RELEASED = ("free_released", "push_released", "slot_lease_end", "ledger_collect", "ledger_close")

SOURCES = ("ring.h", "doorbell.h", "doorbell.c", "lease.h", "generation.h", "generation.c")


class NotFound(ValueError):
    """A text that must stand in the sources once, and does not."""


def replaced(text: str, old: str, new: str) -> str:
    """Return the text with old, which stands there once, replaced."""
    if text.count(old) != 1:
        raise NotFound(f"{text.count(old)} times: {old}")
    return text.replace(old, new)


def function(text: str, name: str) -> str:
    """Return the definition of one function."""
    found = re.search(rf"^[a-z][^\n;]*\b{name}\([^;]*?\) \{{\n.*?^}}\n", text, re.M | re.S)
    if found is None:
        raise NotFound(name)
    return found.group()


def read() -> dict[str, str]:
    """Return the text of each source; released.c is a part of ledger.c."""
    texts = {name: (CSRC / name).read_text() for name in SOURCES}
    ledger = (CSRC / "ledger.c").read_text()
    texts["released.c"] = "\n".join(function(ledger, name) for name in RELEASED)
    return texts


def translate(texts: dict[str, str], folder: Path) -> None:
    """Write the sources as C++ into a folder."""
    cells = "_Atomic uint32_t cells[];"
    ring = replaced(texts["ring.h"], cells, "plain<uint32_t> cells[RING_CELLS];")
    ring = replaced(ring, "_Atomic uint32_t *cell =", "plain<uint32_t> *cell =")
    # Members of the program instead of static words, which relacy could not begin anew.
    generation = re.sub(r"^static ", "", texts["generation.c"], flags=re.M)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (texts | {"ring.h": ring, "generation.c": generation}).items():
        (folder / name).write_text(re.sub(r"_Atomic (\w+)", r"rl::atomic<\1>", text))
