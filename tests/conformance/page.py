"""
Prints what holds for which kind, as the table of docs/proofs.md.

    python -m tests.conformance.page
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.kinds import KINDS

FOLDER = Path(__file__).parent


def cases() -> Iterator[tuple[str, str]]:
    """Yield the name of each case, and the sentence that it shows."""
    for path in sorted(FOLDER.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and _is_case(node):
                name = node.name.removeprefix("test_")
                yield name, (ast.get_docstring(node) or "").partition(".")[0]


def _is_case(node: ast.FunctionDef) -> bool:
    return node.name.startswith("test_") and "kind" in [each.arg for each in node.args.args]


def lines() -> Iterator[str]:
    """Yield the lines of the table, and the reasons below it."""
    reasons: dict[str, int] = {}
    yield f"||{'|'.join(kind.name for kind in KINDS)}|"
    yield f"|---|{'|'.join(':---:' for _ in KINDS)}|"
    for name, sentence in cases():
        cells = [
            f"[{reasons.setdefault(kind.differs[name], len(reasons) + 1)}]"
            if name in kind.differs
            else "●"
            for kind in KINDS
        ]
        yield f"|{sentence}|{'|'.join(cells)}|"
    yield ""
    for reason, number in reasons.items():
        yield f"{number}. {reason[0].upper()}{reason[1:]}."


if __name__ == "__main__":
    print("\n".join(lines()))
