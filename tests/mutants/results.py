"""The results: a line of JSON for each mutant, and for each file of tests that was timed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

Verdict = dict[str, Any]


def append(path: Path, row: dict[str, Any]) -> None:
    """Write one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as lines:
        lines.write(f"{json.dumps(row)}\n")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read(path: Path) -> dict[str, Verdict]:
    """Read the verdicts by the mutant's name; the last one of each counts."""
    return {row["name"]: row for row in _rows(path) if "name" in row}


def read_seconds(path: Path) -> dict[str, float]:
    """Read the seconds of each file of tests that ran to its end."""
    return {row["test_file"]: row["seconds"] for row in _rows(path) if "test_file" in row}


def line(verdict: Verdict) -> str:
    """Say a verdict in a line."""
    by = f" by {verdict['test']}: {verdict['error']}" if verdict["error"] else ""
    return f"{verdict['outcome']} in {verdict['seconds']:.0f} s: {verdict['name']}{by}"


def table(verdicts: dict[str, Verdict]) -> str:
    """Make the table of shares by folder, and the list of survivors."""
    counts = Counter((row["folder"], row["outcome"]) for row in verdicts.values())
    lines = ["| folder | run | found | timeout | survived | share found |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for folder in [*sorted({folder for folder, _ in counts}), "all"]:
        of = {
            outcome: sum(
                count
                for (each, kind), count in counts.items()
                if kind == outcome and folder in (each, "all")
            )
            for outcome in ("found", "timeout", "survived")
        }
        run = sum(of.values())
        share = f"{100 * (run - of['survived']) / run:.0f} %" if run else "-"
        cells = (f"`{folder}`" if folder != "all" else "all", run, *of.values(), share)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    survivors = [name for name, row in verdicts.items() if row["outcome"] == "survived"]
    return "\n".join([*lines, "", *survivors])
