"""
What a question is: its options, its tables and their JSON; `python -m bench NAME` asks it.

A module of a question has a docstring, which is the help, and `QUESTION`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.driver import settle
from bench.report.table import shown

Options = argparse.Namespace


# Yields a record for each row of a table, whose keys are the titles; no column shows lists and
# dicts. A record is wrong if it says so in `correct`, or has `mistakes` by contender.
Records = Callable[[Options], Iterable[dict]]


class Table(NamedTuple):
    """
    A table whose records have names of their own.

    Attributes:
        columns: The title of each column, and the record's field that it shows.
        records: Yields the records.
    """

    columns: dict[str, str]
    records: Records


@dataclass(frozen=True)
class Question:
    """
    A question.

    Attributes:
        tables: Its records, or those of its parts by name, of which `--part` chooses.
        options: By name: what argparse gets of each; see the functions below.
        end: Draws or says what follows, of the records by part; False: something is wrong.
    """

    tables: Table | Records | dict[str, Table | Records]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    end: Callable[[Options, dict[str, list[dict]]], bool | None] | None = None

    def ask(self, command: str, about: str | None, arguments: list[str]) -> int:
        """Answer it; the exit code is 0 if every row was right."""
        options = self._parse(command, about, arguments)
        settle()
        found = {}
        if not isinstance(self.tables, dict):
            found[command] = show(self.tables, options, options.json)
        else:
            for part in options.part or self.tables:
                print(f"\n{part}\n")
                path = options.json and options.json.with_suffix(f".{part}.json")
                found[part] = show(self.tables[part], options, path)
        right = all(is_right(record) for records in found.values() for record in records)
        if self.end:
            right &= self.end(options, found) is not False
        return 0 if right else 1

    def _parse(self, command: str, about: str | None, arguments: list[str]) -> Options:
        parser = argparse.ArgumentParser(
            prog=f"python -m bench {command}",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        options = {"json": file("also write a JSON line per row"), **self.options}
        if isinstance(self.tables, dict):
            options["part"] = several(self.tables)
        for name, given in options.items():
            parser.add_argument(f"--{name.replace('_', '-')}", **given)
        return parser.parse_args(arguments)


def several(choices: Iterable[str], about: str = "may be repeated") -> dict[str, Any]:
    """Make an option that chooses rows; without it there are all."""
    return {"action": "append", "choices": list(choices), "help": about}


def number(default: float, about: str | None = None) -> dict[str, Any]:
    """Make an option with a default, of its type."""
    return {"type": type(default), "default": default, "help": about}


def numbers(about: str) -> dict[str, Any]:
    """Make an option with an integer, or more if it is repeated."""
    return {"type": int, "action": "append", "help": about}


def flag(about: str) -> dict[str, Any]:
    """Make an option without a value."""
    return {"action": "store_true", "help": about}


def file(about: str, metavar: str = "FILE") -> dict[str, Any]:
    """Make an option with a path."""
    return {"type": Path, "metavar": metavar, "help": about}


def is_right(record: dict) -> bool:
    """Returns True if nothing in a record says that it is wrong."""
    return record.get("correct", True) and not record.get("mistakes")


def show(table: Table | Records, options: Options, path: Path | None = None) -> list[dict]:
    """
    Print each record as a row as soon as it is there, behind what is said before.

    Args:
        path: Gets a JSON line per record, with fields that no column shows; None writes nothing.
    """
    columns, records = table if isinstance(table, Table) else ({}, table)
    found = []
    if path:
        path.write_text("")
    for record in records(options):
        columns = columns or {
            name: name for name, value in record.items() if not isinstance(value, (list, dict))
        }
        if not found:
            print(f"| {' | '.join(columns)} |")
            print(f"| {' | '.join('---' for _ in columns)} |")
        cells = [shown(record[name]) for name in columns.values()]
        print(f"| {' | '.join(cells)} |", flush=True)
        if path:
            with path.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
        for contender, mistake in record.get("mistakes", {}).items():
            print(f"WRONG: {contender}: {mistake}", file=sys.stderr)
        found.append(record)
    return found
