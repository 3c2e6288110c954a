"""
`shmloader run`: runs a program unchanged, with its torch DataLoaders served by shmloader.

A variable and a folder on PYTHONPATH say so to every Python that the program starts: ranks, and
children by spawn and forkserver, go the same way. See hook/sitecustomize.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shmloader.cli.command import CommandError
from shmloader.cli.run.settings import VARIABLE, Settings

_HOOK = Path(__file__).with_name("hook")

_EXAMPLES = """\
examples:
  shmloader run train.py --epochs 3
  shmloader run --compare train.py --epochs 4
  torchrun --nproc-per-node 2 -m shmloader run train.py

It ends with the program's own exit status; 1 if there is no such program, 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """
    Become the program that the arguments name, or stop at those that are wrong.

    Raises:
        CommandError: There is no program, or this Python ignores PYTHONPATH.
    """
    return run(make_parser().parse_args(arguments))


def make_parser() -> argparse.ArgumentParser:
    """Describe the options and the program."""
    parser = argparse.ArgumentParser(
        prog="shmloader run",
        usage="shmloader run [options] (SCRIPT | -m MODULE) [ARGS ...]",
        description="Run a script or module unchanged, with every torch DataLoader in it served by "
        "shmloader, and say at the end what they did.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="let torch iterate every second epoch of each loader, and compare the two; each has "
        "persistent workers of its own then, whose random numbers go on from its own last epoch",
    )
    for name, meaning in (
        ("slots", "slots of each loader"),
        ("slot-bytes", "bytes touched ahead in each slot"),
        ("ring-bytes", "ceiling in bytes for what the slots of a loader keep"),
        ("restarts", "deaths of workers that are healed in each epoch"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=meaning)
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, help="a module, as with `python -m`"
    )
    parser.add_argument("script", nargs="?", help="a script, as with `python`")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """
    Become the program; it says at its end what its loaders did.

    Raises:
        CommandError: There is no program, or this Python ignores PYTHONPATH.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise CommandError("works by PYTHONPATH and site: start Python without -E, -I and -S")
    if arguments.module:
        program = ["-m", *arguments.module]
    elif arguments.script:
        if not Path(arguments.script).exists():
            raise CommandError(f"there is no file {arguments.script}")
        program = [arguments.script, *arguments.args]
    else:
        raise CommandError("give a script, or -m and a module, and its arguments")
    options = {
        name: value
        for name in ("slots", "slot_bytes", "ring_bytes", "restarts")
        if (value := getattr(arguments, name)) is not None
    }
    settings = Settings(options, arguments.compare, os.getpid())
    paths = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        VARIABLE: settings.to_text(),
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *flags, *program], environment)
