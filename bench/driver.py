"""
How a question is asked: `python -m bench NAME`, whose table is printed row by row.

A question is a module. Its docstring is the help, `add_options(parser)` adds its options, and
`records(options)` yields a record for each row of `COLUMNS`. If it has several tables, `PARTS` has
the columns and the records of each, by name. `end(options, found)` draws or says what follows, and
may return False. A record is wrong if it says so in `correct`, or has `mistakes` by contender.

    python -m bench.driver bench.questions.memory.run '{"load": "annotations", ...}'

runs one row of a module that has `Row` and `run(row)`, and prints what that returns.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.report.machine import CHECKOUT
from bench.report.table import shown

Columns = dict[str, str]
Records = Callable[[argparse.Namespace], Iterable[dict]]


def ask(command: str, question: Any, arguments: list[str]) -> int:
    """Answer a question; the exit code is 0 if every row was right."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {command}",
        description=question.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write a JSON line per row")
    if hasattr(question, "add_options"):
        question.add_options(parser)
    parts: dict[str, tuple[Columns, Records]] = getattr(question, "PARTS", {})
    if parts:
        parser.add_argument("--part", action="append", choices=parts, help="may be repeated")
    options = parser.parse_args(arguments)
    _settle()
    found = {}
    if not parts:
        found[command] = show(question.COLUMNS, question.records(options), options.json)
    for part in (options.part or parts) if parts else ():
        columns, records = parts[part]
        print(f"\n{part}\n")
        path = options.json and options.json.with_suffix(f".{part}.json")
        found[part] = show(columns, records(options), path)
    right = all(is_right(record) for records in found.values() for record in records)
    if hasattr(question, "end"):
        right &= question.end(options, found) is not False
    return 0 if right else 1


def is_right(record: dict) -> bool:
    """Returns True if nothing in a record says that it is wrong."""
    return record.get("correct", True) and not record.get("mistakes")


def show(columns: Columns, records: Iterable[dict], path: Path | None = None) -> list[dict]:
    """
    Print each record as a row of a table as soon as it is there, behind what is said before.

    Args:
        columns: The title of each column, and the record's field that it shows.
        path: Gets a JSON line per record, with fields that no column shows; None writes nothing.
    """
    found = []
    if path:
        path.write_text("")
    for record in records:
        if not found:
            print(f"| {' | '.join(columns)} |")
            print(f"| {' | '.join('---' for _ in columns)} |")
        print(f"| {' | '.join(shown(record[name]) for name in columns.values())} |", flush=True)
        if path:
            with path.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
        for contender, mistake in record.get("mistakes", {}).items():
            print(f"WRONG: {contender}: {mistake}", file=sys.stderr)
        found.append(record)
    return found


def turns(names: Iterable[str], rounds: int) -> Iterator[str]:
    """Yield each name once a round; another one comes first in each, so that none always does."""
    names = list(names)
    for number in range(rounds):
        first = number % len(names)
        yield from names[first:] + names[:first]


def in_turns(
    names: Iterable[str], rounds: int, measure: Callable[[str], dict]
) -> dict[str, list[dict]]:
    """Measure each contender once a round. Returns what was found of each, round by round."""
    found: dict[str, list[dict]] = {name: [] for name in names}
    for name in turns(found, rounds):
        found[name].append(measure(name))
    return found


def middle(runs: Iterable[dict], field: str, scale: float = 1.0) -> float | None:
    """Return the median of a figure over the runs that have it, or None if none has."""
    values = [run[field] for run in runs if run.get(field) is not None]
    return scale * median(values) if values else None


def ratio(above: Iterable[dict], below: Iterable[dict], field: str) -> float | None:
    """Return the median of the ratios of a figure, each within its round, or None."""
    values = ratios(above, below, field)
    return median(values) if values else None


def ratios(above: Iterable[dict] | None, below: Iterable[dict], field: str) -> list[float]:
    """List the ratios of a figure, each within its round; none if there is nothing above."""
    pairs = zip(above, below, strict=True) if above else ()
    return [one[field] / other[field] for one, other in pairs if one.get(field) and field in other]


def runnable(names: Iterable[str], why_not: Callable[[str], str | None], none: str) -> list[str]:
    """Drop what cannot run here, and say why; if nothing is left, `none` ends the command."""
    reasons = {name: why_not(name) for name in names}
    for name, reason in reasons.items():
        if reason:
            print(f"skipped {name}: {reason}", file=sys.stderr)
    return [name for name in reasons if not reasons[name]] or sys.exit(none)


def mistakes(found: dict[str, list[dict]]) -> dict[str, str]:
    """Collect a mistake of each contender that made one."""
    return {
        name: run["mistake"] for name, runs in found.items() for run in runs if run.get("mistake")
    }


@dataclass(frozen=True)
class Ended:
    """
    How a row ended in a process of its own.

    Attributes:
        status: The exit status; None: it took too long.
        found: What its module's `run` returned, or None.
        said: What was written to stderr.
    """

    status: int | None
    found: dict | None
    said: str


def end_of(
    row: Any,
    longest_s: float,
    within: Sequence[str] = (),
    look: Callable[[int], None] | None = None,
    **variables: str,
) -> Ended:
    """
    Run a row in a process of its own, to its end.

    Args:
        within: A command that becomes the row's.
        look: Called with the process id again and again; it sleeps between two looks.
        variables: More of the environment.
    """
    command = [sys.executable, "-m", "bench.driver", type(row).__module__, json.dumps(asdict(row))]
    # Files, not pipes: torch's shared-memory manager outlives the run with our end in its hand.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*within, *command], cwd=CHECKOUT, env=os.environ | variables, stdout=output,
            stderr=errors,
        )  # fmt: skip
        latest = time.monotonic() + longest_s
        try:
            while look and process.poll() is None and time.monotonic() < latest:
                look(process.pid)
            status = process.wait(max(0.0, latest - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        errors.seek(0)
        return Ended(status, _last_line(output.read()), errors.read())


def _last_line(output: str) -> dict | None:
    try:
        return json.loads(output.strip().rpartition("\n")[2])
    except json.JSONDecodeError:
        return None


def alone(row: Any, longest_s: float = 400, **variables: str) -> tuple[dict, str]:
    """Run a row in a process of its own, which must not fail. Returns its record and stderr."""
    ended = end_of(row, longest_s, **variables)
    if ended.status != 0 or ended.found is None:  # no status: it did not end in time
        sys.exit(f"{row} failed:\n{ended.said}")
    return ended.found, ended.said


def _settle() -> None:
    """Let this process compute with one thread, and torch say nothing of few cores."""
    import torch  # only here: help needs none of it

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")


def _run(module: str, text: str) -> None:
    _settle()
    question = importlib.import_module(module)
    print(json.dumps(question.run(question.Row(**json.loads(text)))))


if __name__ == "__main__":
    _run(*sys.argv[1:])
