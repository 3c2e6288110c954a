"""`shmloader tune`: run a loader of the user's with other options, and say which to set."""

from __future__ import annotations

import warnings
from functools import partial

import click

from shmloader.cli import targets
from shmloader.cli.command import CommandError, naming_the_room
from shmloader.cli.parameters import Seconds

_EPILOG = """\b
Examples:
  shmloader tune train:make_loader --step train:step
  shmloader tune train:make_loader --step-seconds 0.05 --seconds 120

\b
Exit status: 1 if there is no such function, or the loader's epochs are too
short to measure; 2 for wrong options.
"""


@click.command(epilog=_EPILOG)
@click.argument("make_loader", metavar="MODULE:FUNCTION")
@click.option(
    "--step",
    metavar="MODULE:FUNCTION",
    help="What is done with each batch: a function of the batch.",
)
@click.option(
    "--step-seconds",
    type=Seconds(min=0),
    help="How long the step takes, if it cannot be run here.",
)
@click.option(
    "--seconds",
    type=Seconds(min=1),
    default=60.0,
    show_default=True,
    help="About how long all runs take together.",
)
def tune(make_loader: str, step: str | None, step_seconds: float | None, seconds: float) -> int:
    """
    Find num_workers, prefetch_factor, assignment, slots and ring_bytes for a loader.

    MODULE:FUNCTION makes the loader: torch's class, a subclass or shmloader's. It is run several
    times with other options, with the step after each batch. Without a step it is tuned for the
    rate of the data alone.
    """
    if step is not None and step_seconds is not None:
        raise click.UsageError("--step and --step-seconds are two ways to say the same: give one")
    made = targets.load(make_loader)
    stepped = targets.load(step) if step is not None else step_seconds
    with naming_the_room("shmloader tune"):
        from shmloader import tuning  # only now: it imports torch

    try:
        with warnings.catch_warnings():
            # torch advises against as many workers as are tried; that is what is measured here.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            found = tuning.tune(made, stepped, seconds=seconds, tell=partial(click.echo, err=True))
    except (tuning.NotTunable, tuning.TooFewBatches) as error:
        raise CommandError(str(error)) from error
    click.echo(str(found))
    return 0
