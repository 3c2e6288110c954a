"""`shmloader top`: what trainings that run wait for, read from outside."""

import argparse
from collections.abc import Sequence

from shmloader.cli.command import naming_the_component, parser_of, seconds

_EPILOG = """\
examples:
  shmloader top                 # all training processes of this user, until Ctrl-C
  shmloader top 4711 --once
  shmloader top --once --json | jq .trainers[].loaders[].verdict

exit status: 0 if it found a training process; 1 if there was none, or it may
not be inspected; 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """Show trainings as the arguments say."""
    chosen = _parser().parse_args(arguments)
    with naming_the_component("shmloader top"):
        from shmloader.cli.top.show import show_trainings  # only now: it imports torch

    return show_trainings(chosen)


def _parser() -> argparse.ArgumentParser:
    description = (
        "Show what running training processes wait for. It reads them from outside, and changes "
        "nothing in them."
    )
    parser = parser_of("top", description, _EPILOG)
    parser.add_argument(
        "pid",
        nargs="?",
        type=int,
        help="the training process; default: all of this user's",
    )
    parser.add_argument("--once", action="store_true", help="print once, and end")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per update, each on its own line",
    )
    parser.add_argument(
        "--interval",
        type=seconds(1e-3),
        default=1.0,
        metavar="S",
        help="seconds between updates (default: %(default)s)",
    )
    return parser
