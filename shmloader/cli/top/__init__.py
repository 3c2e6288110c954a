"""`shmloader top`: what trainings that run wait for, read from outside."""

from __future__ import annotations

import time

import click

from shmloader.cli.attach.options import hangs_after
from shmloader.cli.attach.processes import lives
from shmloader.cli.attach.trainers import LiveTrainer, find, find_all, none_found
from shmloader.cli.command import CommandError, until_reader_leaves
from shmloader.cli.top.show import way_to_show
from shmloader.metrics.live import HANGS_AFTER_S

_EPILOG = """\b
Examples:
  shmloader top
  shmloader top 4711 --interval 5
  shmloader top --once --json | python -m json.tool

\b
Exit status: 0 if it saw a training; 1 if there was none, or it may not be
looked at; 2 for wrong options. Ctrl-C ends it.
"""


@click.command(epilog=_EPILOG)
@click.argument("pid", type=int, required=False)
@click.option("--once", is_flag=True, help="Look once.")
@click.option("--json", "as_json", is_flag=True, help="Print an object per look, on a line each.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds from one look to the next.",
)
@hangs_after
def top(pid: int | None, once: bool, as_json: bool, interval: float, hangs_after_s: float) -> int:
    """
    Show what running trainings wait for: loaders, slots, and each worker at its sample.

    PID is the training's process; without it, all of this user's are shown. It only reads, and the
    trainings do not notice. A terminal is refreshed in place.
    """
    with until_reader_leaves():
        return show_trainings(
            pid, once=once, as_json=as_json, interval_s=interval, hangs_after_s=hangs_after_s
        )
    return 0


def show_trainings(
    pid: int | None,
    *,
    once: bool = False,
    as_json: bool = False,
    interval_s: float = 1.0,
    hangs_after_s: float = HANGS_AFTER_S,
) -> int:
    """
    Show a training, or all, until it ends or Ctrl-C.

    Returns:
        The exit status.

    Raises:
        CommandError: The process is not there, trains nothing, or may not be looked at.
    """
    has_seen = False
    try:
        with way_to_show(as_json, once) as show:
            while True:
                trainers, nothing, is_over = _look(pid, hangs_after_s, has_seen)
                has_seen = has_seen or bool(trainers)
                show(trainers, nothing)
                if once or is_over:
                    break
                time.sleep(interval_s)
    except KeyboardInterrupt:  # the way to leave
        pass
    return 0 if has_seen else 1


def _look(
    pid: int | None, hangs_after_s: float, has_seen: bool
) -> tuple[list[LiveTrainer], str, bool]:
    """Returns trainings, what to say if there are none, and True if there is no more to see."""
    if pid is None:
        trainers, forbidden = find_all(hangs_after_s)
        return trainers, none_found(forbidden), False
    try:
        return [find(pid, hangs_after_s)], "", False
    except CommandError as error:
        if not has_seen:
            raise
        return [], str(error) if lives(pid) else f"process {pid} has ended", True
