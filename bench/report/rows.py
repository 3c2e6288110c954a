"""A table that is printed row by row while a benchmark runs, and the same rows as JSON lines."""

import argparse
import json
from pathlib import Path

from bench.report.table import shown


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the file for the JSON lines."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write a JSON line per row")


class Rows:
    """
    Prints each record as a row of a table as soon as it is there.

    Args:
        columns: The title of each column, and the record's field that it shows.
        path: Gets a JSON line per record, with fields that no column shows; None writes nothing.
    """

    def __init__(self, columns: dict[str, str], path: Path | None = None):
        self._columns = columns
        self._path = path
        if path:
            path.write_text("")
        print(f"| {' | '.join(columns)} |")
        print(f"| {' | '.join('---' for _ in columns)} |", flush=True)

    def add(self, record: dict) -> None:
        """Print one record and append its line."""
        cells = [shown(record[name]) for name in self._columns.values()]
        print(f"| {' | '.join(cells)} |", flush=True)
        if self._path:
            with self._path.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
