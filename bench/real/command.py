"""
Five real trainings with torch's loader and with ours, in turns: the same losses, and how fast.

    python -m bench real                                   all of it, into bench/results/real/
    python -m bench real --training jpegs --rounds 9       one of it, printed only

A training whose packages are missing is skipped; `make bench-real` installs them all.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.driver import runnable
from bench.real import figures, report, turns
from bench.real.trainings import TRAININGS

COLUMNS = report.COLUMNS


def records(options: argparse.Namespace) -> Iterator[figures.Record]:
    """Yield two rows per training; they are right if every loss of ours was torch's."""
    for name in ("rounds", "steps"):
        value = getattr(options, name)
        if value is not None and value < 1:
            sys.exit(f"--{name} must be at least 1, not {value}")
    options.about = report.about(["python", "-m", "bench", *sys.argv[1:]])  # load before the run
    names = runnable(
        options.training or TRAININGS,
        lambda name: TRAININGS[name].why_not(),
        "no training can run here: make bench-real installs what they need",
    )
    options.is_whole = len(sys.argv) == 2 and names == list(TRAININGS)
    options.failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if any(TRAININGS[name].pictures for name in names):
            from bench.real import photographs  # only now: its packages may be missing

            photographs.write(folder)
        for name in names:
            spec = TRAININGS[name]
            try:
                runs = turns.alternate(name, options.steps or spec.steps, options.rounds, folder)
            except turns.Failed as failure:
                print(f"FAILED: {name}: {failure}", file=sys.stderr)
                options.failed.append(name)
                continue
            yield from map(report.worded, figures.records(name, spec.title, runs))


def end(options: argparse.Namespace, found: dict[str, list[figures.Record]]) -> bool:
    """Publish a whole run that was right. Returns True if no training failed."""
    if options.is_whole and not options.failed and all(each["correct"] for each in found["real"]):
        report.write(found["real"], options.about)
    return not options.failed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--training", action="append", choices=TRAININGS, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="timed epochs of each loader")
    parser.add_argument("--steps", type=int, help="of an epoch, instead of the training's")
