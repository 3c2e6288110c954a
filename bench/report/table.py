"""Figures in words, tables of records, and the pages of published results."""

import json
from pathlib import Path

from bench.report import machine


def publish(folder: Path, title: str, about: dict, records: list[dict], *parts: str) -> None:
    """
    Write records, machine and page of a run into a folder.

    Args:
        about: What `machine.about` said before the run.
        parts: What the page says below the machine and the command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / "machine.json").write_text(json.dumps(about, indent=2) + "\n")
    head = [f"# {title}\n", f"{machine.sentence(about)}.\n", f"Command: `{about['command']}`\n"]
    (folder / "table.md").write_text("\n".join([*head, *parts]))
    print(f"wrote {folder / 'table.md'}")


def markdown(columns: dict[str, str], records: list[dict]) -> str:
    """Write a table, as `driver.show` prints it; figures stand on the right."""
    lines = [[*columns], ["---", "---", *("---:" for _ in [*columns][2:])]]
    lines += [[shown(record[field]) for field in columns.values()] for record in records]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def span(values: list[float]) -> str:
    """Word the range of some figures."""
    return f"{figure(min(values))} to {figure(max(values))}" if values else "-"


def figure(value: float | None) -> str:
    """Three significant digits without an exponent."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{float(f'{value:.3g}'):.6f}".rstrip("0").rstrip(".")


def shown(value: float | str | None) -> str:
    """Word a figure, an answer or a name for a table."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return figure(value) if value is None or isinstance(value, float) else str(value)
