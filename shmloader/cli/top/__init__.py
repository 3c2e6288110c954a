"""
`shmloader top`: what trainings that run wait for, read from outside.

It exits with 0 if it saw a training, and with 1 if there was none or it could not be looked at.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from shmloader.cli.attach.processes import lives
from shmloader.cli.attach.trainers import LiveTrainer, find, find_all, none_found
from shmloader.cli.command import CommandError, positive_number, until_reader_leaves
from shmloader.cli.top.show import way_to_show
from shmloader.metrics.live import HANGS_AFTER_S

_EPILOG = """\
examples:
  shmloader top                 # all trainings of this user, until Ctrl-C
  shmloader top 4711 --once
  shmloader top --once --json | jq .trainers[].loaders[].verdict

exit status: 0 if it saw a training; 1 if there was none, or it may not be
looked at; 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """Show trainings as the arguments say."""
    return _run(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shmloader top",
        description="Show what trainings that run wait for. It reads them from outside, and "
        "changes nothing in them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "pid", nargs="?", type=int, help="the training's process; default: all of this user's"
    )
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument(
        "--json", action="store_true", help="print an object per look, each on a line of its own"
    )
    parser.add_argument(
        "--interval",
        type=positive_number,
        default=1.0,
        metavar="S",
        help="seconds from one look to the next (default: %(default)s)",
    )
    parser.add_argument(
        "--hangs-after",
        type=positive_number,
        default=HANGS_AFTER_S,
        metavar="S",
        help="a worker hangs if a sample takes it longer than this many seconds and 20 times as "
        "long as usual (default: %(default)s)",
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    with until_reader_leaves():
        return show_trainings(
            arguments.pid,
            once=arguments.once,
            as_json=arguments.json,
            interval_s=arguments.interval,
            hangs_after_s=arguments.hangs_after,
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
