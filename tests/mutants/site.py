"""A place where a mistake can be made, and what a file is with it."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEED = 54

# Of these a third is drawn: an argument or a value that is None nearly always ends in an exception,
# and they would be every second mutant.
_FREQUENT = {"arg_removal", "assignment"}


@dataclass(frozen=True)
class Site:
    """
    A place and an operator, which makes one mistake of it or several, of which the seed takes one.

    Args:
        path: The file, from the root of the repository.
        operator: The operator's name.
        scope: The line as it is written, and the function around it where that is known.
        texts: Makes the whole files, one for each mistake.
    """

    path: str
    line: int
    column: int
    operator: str
    scope: str
    texts: Callable[[], list[str]]


@dataclass(frozen=True)
class Mutant:
    """One mistake: `name` is file:line:operator, with a number behind it if there are several."""

    name: str
    path: str
    rank: str
    texts: Callable[[], list[str]]

    @property
    def folder(self) -> str:
        """The folder by which the shares are counted."""
        parts = Path(self.path).parts
        return parts[0] if parts[0] == "csrc" else f"{parts[1]}/"

    def text(self) -> str:
        """Make the file with the mistake in it."""
        made = self.texts()
        return made[int(self.rank[:8], 16) % len(made)]

    def change(self) -> list[str]:
        """List the lines that go, with a minus, and those that come, with a plus."""
        lines = difflib.unified_diff(
            (ROOT / self.path).read_text().splitlines(), self.text().splitlines(), n=0, lineterm=""
        )
        return [line for line in lines if line[:3] not in ("---", "+++") and line[0] != "@"]


def mutants(sites: Iterator[Site]) -> list[Mutant]:
    """
    Make one mutant of each site, in the order of the draw.

    A mutant's rank is the hash of the seed and of what is written there, not of its line's number,
    so that a change elsewhere leaves it where it is, and a sample of two commits is mostly one.
    """
    seen: Counter[str] = Counter()
    named: Counter[str] = Counter()
    made = []
    for site in sites:
        key = f"{Path(site.path).name} {site.operator} {site.scope}"
        name = f"{site.path}:{site.line}:{site.operator}"
        seen[key] += 1
        named[name] += 1
        rank = hashlib.sha256(f"{SEED} {key} {seen[key]}".encode()).hexdigest()
        number = f".{named[name]}" if named[name] > 1 else ""
        if site.operator in _FREQUENT and int(rank[-8:], 16) % 3:
            continue
        made.append(Mutant(f"{name}{number}", site.path, rank, site.texts))
    return sorted(made, key=lambda each: each.rank)
