"""`shmloader trace`: what a training's workers and trainer did lately, as a file."""

from __future__ import annotations

from pathlib import Path

import click

from shmloader.cli.attach.segments import LAYOUT
from shmloader.cli.attach.trainers import find
from shmloader.cli.command import CommandError
from shmloader.metrics.trace import NothingToTrace, Traced, write_trace

_EPILOG = """\b
Example:
  shmloader trace 4711 -o trace.json   # then open it in ui.perfetto.dev

\b
Exit status: 1 if there is no such training, it returned no batch yet, or the
file cannot be written; 2 for wrong options.
"""


@click.command(epilog=_EPILOG)
@click.argument("pid", type=int)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help="The JSON file to write.",
)
def trace(pid: int, output: Path) -> int:
    """Write what the last batches of the training PID did, as `loader.trace(path)` in it would."""
    return trace_process(pid, output)


def trace_process(pid: int, path: Path) -> int:
    """
    Write a trace of a running training.

    Returns:
        The exit status.

    Raises:
        CommandError: There is no such training, it has returned no batch yet, or the file cannot
            be written.
    """
    trainer = find(pid)
    traced = [Traced(each.loader, each.label, each.records) for each in trainer.loaders]
    try:
        batches = write_trace(path, traced, LAYOUT)
    except (NothingToTrace, OSError) as error:
        raise CommandError(f"no trace of process {pid} was written: {error}") from None
    print(f"{path}: the last {batches} batches; open it in https://ui.perfetto.dev")
    return 0
