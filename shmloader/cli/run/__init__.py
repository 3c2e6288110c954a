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

from shmloader.cli.command import CommandError, HelpFormatter
from shmloader.cli.run.settings import VARIABLE, Settings
from shmloader.trainer.options import Options

_HOOK = Path(__file__).with_name("hook")

_EXAMPLES = """\
examples:
  shmloader run train.py --epochs 3
  shmloader run --compare train.py --epochs 4
  torchrun --nproc-per-node 2 -m shmloader run train.py

It ends with the program's own exit status; 1 if there is no such program or an option is out of
range, 2 for unknown options.
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
        formatter_class=HelpFormatter,
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
        ("nice", "added to the niceness of each worker, 0 to 19"),
        ("prefetch-to-device", "batches that are copied to the device ahead"),
        ("worker-bytes", "bytes by which a worker may grow before it is replaced"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=meaning)
    parser.add_argument(
        "--assignment", metavar="KIND", help='"dynamic": ask the worker that has least to do'
    )
    parser.add_argument(
        "--device", metavar="NAME", help='"cuda": have batches on that device; experimental'
    )
    parser.add_argument(
        "--seed-by", metavar="WHAT", help='"batch": random draws depend on the batch alone'
    )
    parser.add_argument(
        "--fetch-threads",
        type=_threads,
        metavar="N",
        help='threads that fetch in each worker, or "auto"',
    )
    parser.add_argument(
        "--overlap-epochs",
        action="store_true",
        default=None,
        help="fetch the next epoch's first batches while this one ends",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="as with `python -m`")
    # All in one: of several, argparse would take a "--" for itself.
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="a script or module, and its own arguments"
    )
    return parser


def _threads(text: str) -> int | str:
    """Read a number of threads; words are judged with the other options."""
    return int(text) if text.isdigit() else text


def run(arguments: argparse.Namespace) -> int:
    """
    Become the program; it says at its end what its loaders did.

    Raises:
        CommandError: There is no program, an option is out of range, or this Python ignores
            PYTHONPATH.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise CommandError("works by PYTHONPATH and site: start Python without -E, -I and -S")
    program = arguments.program[arguments.program[:1] == ["--"] :]
    if not program:
        raise CommandError("give a script, or -m and a module, and its arguments")
    if arguments.is_module:
        program = ["-m", *program]
    elif not Path(program[0]).exists():
        raise CommandError(f"there is no file {program[0]}")
    options = {
        name: value
        for name in Options().by_name()
        if (value := getattr(arguments, name, None)) is not None
    }
    try:
        given = Options(**options)
        if len(options) > 1:
            # Only then: it imports torch, which takes seconds.
            from shmloader.trainer import together

            together.check_alone(given)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from None
    settings = Settings(options, arguments.compare, os.getpid())
    paths = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        VARIABLE: settings.to_text(),
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if getattr(sys.stdout, "write_through", False):
        flags.append("-u")  # which that function does not know
    os.execve(sys.executable, [sys.executable, *flags, *program], environment)
