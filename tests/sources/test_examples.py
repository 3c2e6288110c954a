"""
The Python blocks of all pages run as programs of their own, and print what they say they print.

A comment in the line above a block says what differs: `<!-- needs: NAME -->` runs it only if that
module, or attribute of one, is here; `<!-- not run: REASON -->` leaves it out.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.stage import LIBRARIES, run_file, staged

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("*.md", "bench/**/*.md", "csrc/**/*.md", "docs/**/*.md", "tests/**/*.md")
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>.*?): (?P<what>.*) -->\n)?```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# So that its user can see the difference, a program takes many epochs, of which one shows as much.
MANY, ONE = "for epoch in range(8):", "for epoch in range(1):"
# What is printed stands behind the call, on one line or, if ruff broke that, several.
PRINTS = re.compile(r"^( *)print\((?:.*|\n(?:\1 .*\n)+\1)\)  # (?P<text>.+)$", re.MULTILINE)
IGNORING = ("-W", "ignore:This DataLoader will create:UserWarning")  # of a machine with one core


@dataclass(frozen=True)
class Example:
    """A block of a page, with what the comment above it says."""

    name: str
    mark: str | None
    what: str
    code: str


def examples() -> list[Example]:
    """List the blocks of all pages."""
    pages = sorted(path for place in PLACES for path in ROOT.glob(place))
    return [
        Example(
            f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, block.start('code'))}",
            block["mark"],
            block["what"] or "",
            block["code"],
        )
        for page in pages
        for text in [page.read_text()]
        for block in BLOCK.finditer(text)
    ]


RUN = [example for example in examples() if example.mark != "not run"]


def is_here(name: str) -> bool:
    """Returns True if a module, or an attribute of one, can be imported."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def promised(code: str) -> list[str]:
    """List what a block says that it prints."""
    return [found["text"] for found in PRINTS.finditer(code)]


def missing(expected: list[str], printed: list[str]) -> list[str]:
    """List what was not printed, in its order; "..." stands for any text."""
    lines = iter(printed)
    patterns = [(line, re.escape(line).replace(re.escape("..."), ".*")) for line in expected]
    return [
        line
        for line, pattern in patterns
        if not any(re.fullmatch(pattern, found) for found in lines)
    ]


stage = staged(LIBRARIES, *IGNORING)


@pytest.mark.thorough
@pytest.mark.parametrize("example", RUN, ids=lambda example: example.name)
def test_example_runs(stage, example, tmp_path):
    """A block ends without an error, and prints what stands behind its print()."""
    if example.mark == "needs" and not is_here(example.what):
        pytest.skip(f"{example.what} is not here")
    status, lines, errors = run_file(stage, tmp_path, example.code.replace(MANY, ONE))

    assert (0, "") == (status, errors)
    assert [] == missing(promised(example.code), lines)
