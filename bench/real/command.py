"""
Five real trainings with torch's loader and with ours, in turns: the same losses, and how fast.

    python -m bench real                                   all of it, into bench/results/real/
    python -m bench real --training jpegs --rounds 9       one of it, printed only

A training whose packages are missing is skipped; `make bench-real` installs them all.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from bench.options import parser_of
from bench.real import figures, report, turns
from bench.real.trainings import TRAININGS
from bench.report.rows import Rows, add_json_option

_ROUNDS = 5


def main(arguments: list[str]) -> int:
    """Print two rows per training; the exit code is 0 if every loss of ours was torch's."""
    options = _options(arguments)
    about = report.about(["python", "-m", "bench", "real", *arguments])  # load before the run
    names = _runnable(options.training or list(TRAININGS))
    records, failed = _run(names, options)
    if not arguments and not failed and names == list(TRAININGS):
        report.write(records, about)
    return 1 if failed else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("real", __doc__)
    parser.add_argument("--training", action="append", choices=TRAININGS, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="timed epochs of each loader")
    parser.add_argument("--steps", type=int, help="of an epoch, instead of the training's")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    for name in ("rounds", "steps"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, not {value}")
    return options


def _runnable(wanted: list[str]) -> list[str]:
    """Drop the trainings whose packages are missing, and say which these are."""
    found = []
    for name in wanted:
        reason = TRAININGS[name].why_not()
        if reason:
            print(f"skipped {name}: {reason}", file=sys.stderr)
        else:
            found.append(name)
    if not found:
        sys.exit("no training can run here: make bench-real installs what they need")
    return found


def _run(names: list[str], options: argparse.Namespace) -> tuple[list[figures.Record], bool]:
    """Run the trainings. Returns their records, and True if one of them failed."""
    rows = Rows(report.COLUMNS, options.json)
    found, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        _prepare(names, Path(folder))
        for name in names:
            try:
                records = _records(name, options, Path(folder))
            except turns.Failed as failure:
                print(f"FAILED: {name}: {failure}", file=sys.stderr)
                failed = True
                continue
            for record in records:
                rows.add(record)
            if records[0]["mistake"]:
                print(f"WRONG: {name}: {records[0]['mistake']}", file=sys.stderr)
                failed = True
            found += records
    return found, failed


def _prepare(names: list[str], folder: Path) -> None:
    """Make the pictures, if one of the trainings wants them."""
    if any(TRAININGS[name].pictures for name in names):
        from bench.real import photographs  # only now: its packages may be missing

        photographs.write(folder)


def _records(name: str, options: argparse.Namespace, folder: Path) -> list[figures.Record]:
    spec = TRAININGS[name]
    steps = options.steps or spec.steps
    runs = turns.alternate(name, steps, options.rounds, folder)
    return [report.worded(each) for each in figures.records(name, spec.title, runs)]
