"""Mistakes in C: an expression or a statement that stands on one line of csrc/*.c is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from tests.mutants.site import ROOT, Site

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
# No code of a function, or words, or what only a test's build has.
_SKIPPED = re.compile(r"\s*$|\S|\s*#|.*\b(?:STEP\w*|READ_OUT|assert|_Static_assert)\b")

_SWAPS = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "arithmetic": {"+": "-", "-": "+", "*": "+", "+=": "-=", "-=": "+=", "&": "|", "|": "&"},
    "logic": {"&&": "||", "||": "&&"},
}
_CALL = re.compile(r"( +)(?:\(void\))?\w+\(.*\);$")
_STORE = re.compile(r"( +)(?:[*(]*\w+(?:->|\.|\[).*? [-+|&]?= |\w+ [-+|&]?= ).*;$")
_CONDITION = re.compile(r"\b(?:if|while) \(")

Change = Iterator[tuple[int, str]]  # the column, and the line as it is then


def _swapped(pairs: dict[str, str], line: str) -> Change:
    for match in re.finditer(r"(?<= )(?:[<>=!+-]=|[-+*<>&|]|&&|\|\|)(?= )", line):
        if other := pairs.get(match[0]):
            yield match.start(), f"{line[: match.start()]}{other}{line[match.end() :]}"


def _off_by_one(line: str) -> Change:
    for match in re.finditer(r"(?<![\w.])\d+(?![\w.])", line):
        changed = f"{line[: match.start()]}{int(match[0]) + 1}{line[match.end() :]}"
        yield match.start(), changed


def _dropped(line: str) -> Change:
    match = _CALL.match(line) or _STORE.match(line)
    if match and line.count("(") == line.count(")"):
        yield match.end(1), f"{match[1]};"


def _negated(line: str) -> Change:
    for match in _CONDITION.finditer(line):
        if end := _closes(line, match.end()):
            condition = line[match.end() : end]
            yield match.start(), f"{line[: match.end()]}!({condition}){line[end:]}"


def _closes(line: str, start: int) -> int:
    """Find the parenthesis that closes one before `start`; 0: it stands on another line."""
    depth = 1
    for column in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[column], 0)
        if depth == 0:
            return column
    return 0


def _relaxed(line: str) -> Change:
    for match in re.finditer(r"memory_order_(?:acquire|release|acq_rel|seq_cst)", line):
        changed = f"{line[: match.start()]}memory_order_relaxed{line[match.end() :]}"
        yield match.start(), changed


OPERATORS: dict[str, Callable[[str], Change]] = {
    **{name: partial(_swapped, pairs) for name, pairs in _SWAPS.items()},
    "off_by_one": _off_by_one,
    "dropped": _dropped,
    "negated": _negated,
    "relaxed": _relaxed,
}


def sites() -> Iterator[Site]:
    """List the places of all files, file by file."""
    for path in sorted((ROOT / "csrc").glob("*.c")):
        yield from sites_of(str(path.relative_to(ROOT)), path.read_text())


def sites_of(path: str, text: str) -> Iterator[Site]:
    """List the places of a file."""
    lines = text.splitlines()
    for number, code in enumerate(_blanked(text).splitlines()):
        if _SKIPPED.match(code):
            continue
        for name, operator in OPERATORS.items():
            for column, changed in operator(code.rstrip()):
                if not any(match.start() < column < match.end() for match in _TEXT.finditer(code)):
                    texts = partial(_texts, lines, number, changed)
                    yield Site(path, number + 1, column, name, lines[number].strip(), texts)


def _blanked(text: str) -> str:
    """Put blanks in the places of comments, so that lines and columns stay."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _texts(lines: list[str], number: int, changed: str) -> list[str]:
    return ["\n".join([*lines[:number], changed, *lines[number + 1 :], ""])]
