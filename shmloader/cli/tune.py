"""`shmloader tune`: run a loader of the user's with other options, and say which to set."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from functools import partial

from shmloader.cli.command import (
    CommandError,
    load_function,
    naming_the_component,
    parser_of,
    seconds,
)

_DESCRIPTION = (
    "Find num_workers, prefetch_factor, assignment, slots and ring_bytes for a loader. The loader "
    "is run several times with other options, with the step after each batch. Without a step, the "
    "options are those for the highest rate of batches."
)
_EPILOG = """\
examples:
  shmloader tune train:make_loader --step train:step
  shmloader tune train:make_loader --step-seconds 0.05 --seconds 120

exit status: 1 if there is no such function, or the loader's epochs are too
short to measure; 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """Tune the user's loader, print the options to set, and return the exit status."""
    chosen = _parser().parse_args(arguments)
    make_loader = load_function(chosen.make_loader)
    step = load_function(chosen.step) if chosen.step is not None else chosen.step_seconds
    with naming_the_component("shmloader tune"):
        from shmloader import tuning  # only now: it imports torch

    tell = partial(print, file=sys.stderr, flush=True)
    try:
        with warnings.catch_warnings():
            # torch advises against as many workers as are tried; that is what is measured here.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            print(tuning.tune(make_loader, step, seconds=chosen.seconds, tell=tell))
    except (tuning.NotTunable, tuning.TooFewBatches) as error:
        raise CommandError(str(error)) from error
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("tune", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "make_loader",
        metavar="MODULE:FUNCTION",
        help="a function that returns the loader: torch's class, a subclass or shmloader's",
    )
    step = parser.add_mutually_exclusive_group()
    step.add_argument(
        "--step", metavar="MODULE:FUNCTION", help="the step, a function that takes a batch"
    )
    step.add_argument(
        "--step-seconds",
        type=seconds(0),
        metavar="S",
        help="how long a step takes, if it cannot run here",
    )
    parser.add_argument(
        "--seconds",
        type=seconds(1),
        default=60.0,
        metavar="S",
        help="about how long all runs take together (default: %(default)s)",
    )
    return parser
