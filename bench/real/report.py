"""The table of the trainings, on the terminal and in bench/results/real/."""

import json
import shlex
from pathlib import Path

from bench.real.figures import Record
from bench.real.trainings import TRAININGS
from bench.report import machine, table

FOLDER = Path(__file__).parents[1] / "results" / "real"

COLUMNS = {
    "training": "training",
    "loader": "contender",
    "ms per step": "ms",
    "range": "range",
    "times torch": "times_torch",
    "waiting": "waiting",
    "trainer CPU ms": "trainer_cpu_ms",
    "all CPU ms": "all_cpu_ms",
    "trainer faults": "trainer_faults",
    "worker faults": "worker_faults",
    "peak MB": "peak_mb",
    "same losses": "correct",
}


def about(command: list[str]) -> dict:
    """Collect what a reader needs to judge the figures, the packages' versions included."""
    packages = {name for spec in TRAININGS.values() for name in spec.packages.values()}
    versions = {name: machine.version(name) for name in sorted(packages)}
    return {**machine.describe(), "command": shlex.join(command), "packages": versions}


def worded(record: Record) -> Record:
    """Add what the table shows in words: the range over the rounds, and waiting in per cent."""
    return {
        **record,
        "range": table.span(record["rounds_ms"]),
        "waiting": f"{100 * record['wait']:.0f} %",
    }


def write(records: list[Record], about: dict) -> None:
    """Write the published results."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "runs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (FOLDER / "machine.json").write_text(json.dumps(about, indent=2) + "\n")
    (FOLDER / "table.md").write_text(markdown(records, about))
    print(f"wrote {FOLDER / 'table.md'}")


def markdown(records: list[Record], about: dict) -> str:
    """Write the page: machine, versions, command, table, and what each training is."""
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    titles = {record["training"]: record["title"] for record in records}
    parts = [
        "# Trainings\n",
        f"{machine.sentence(about)}; {versions}.\n",
        f"Command: `{about['command']}`\n",
        "Medians over the rounds, their range, and *times torch* as the median of the rounds' own "
        "ratios; more than 1 is faster than torch. CPU and page faults are per step.\n",
        _table(records),
        "".join(f"- `{name}`: {title}.\n" for name, title in titles.items()),
    ]
    return "\n".join(parts)


def _table(records: list[Record]) -> str:
    rows = [[table.shown(record[field]) for field in COLUMNS.values()] for record in records]
    return table.markdown_table(list(COLUMNS), rows)
