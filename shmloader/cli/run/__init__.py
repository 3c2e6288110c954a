"""
`shmloader run`: runs a program unchanged, with its torch DataLoaders served by shmloader.

A variable and a folder on PYTHONPATH say so to every Python that the program starts: ranks, and
children by spawn and forkserver, go the same way. See hook/sitecustomize.py.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shmloader.cli.command import CommandError, WrongArguments, parser_of
from shmloader.options.options import OPTIONS, Options, with_workers
from shmloader.setup import requirements

_HOOK = Path(__file__).with_name("hook")

_EXAMPLES = """\
examples:
  shmloader run train.py --epochs 3
  shmloader run --compare train.py --epochs 4
  torchrun --nproc-per-node 2 -m shmloader run train.py

It ends with the program's own exit status; 1 if there is no such program, 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """Become the program that the arguments name; it says at its end what its loaders did."""
    chosen = _parser().parse_args(arguments)
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise CommandError(
            "`shmloader run` needs PYTHONPATH and site: start Python without -E, -I and -S"
        )
    # How loaders are served, for each process of the program: see observing.py.
    told = {"options": _options_in(chosen), "compare": chosen.compare, "pid": os.getpid()}
    program = _program_in(chosen)
    environment = dict(os.environ)
    if requirements.LACKING is not None:
        print(
            f"shmloader run: torch's own loader runs here: {requirements.LACKING}", file=sys.stderr
        )
    else:
        paths = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "SHMLOADER_RUN": json.dumps(told)}
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if getattr(sys.stdout, "write_through", False):
        flags.append("-u")  # which that function does not know
    os.execve(sys.executable, [sys.executable, *flags, *program], environment)


def _parser() -> argparse.ArgumentParser:
    description = (
        "Run a script or module unchanged, with every torch DataLoader in it served by shmloader, "
        "and print at the end what the loaders did."
    )
    parser = parser_of("run", description, _EXAMPLES)
    parser.usage = "%(prog)s [options] (SCRIPT | -m MODULE) [ARGS ...]"
    parser.add_argument(
        "--compare",
        action="store_true",
        help="let torch's own loader run every second epoch of each loader, and compare the two. "
        "Losses may differ from a plain run: half of the epochs run in torch's workers, and "
        "persistent workers of each side continue with the random numbers of their own last "
        "epoch",
    )
    _add_options(parser)
    parser.add_argument("-m", dest="is_module", action="store_true", help="as with `python -m`")
    # All in one: of several, argparse would take a "--" for itself.
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="a script or module, and its own arguments"
    )
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num-workers",
        choices=["auto"],
        help="find how many workers each loader needs, from its own number on",
    )
    for name, option in OPTIONS.items():
        reading: dict[str, Any] = {"type": _value, "metavar": "VALUE"}
        if isinstance(option.default, bool):
            reading = {"action": argparse.BooleanOptionalAction}
        if option.type.startswith("tuple"):
            reading = {"type": _names, "metavar": "NAMES"}
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, help=option.metadata["help"], default=None, **reading)


def _names(text: str) -> list[str]:
    """Read names with commas between them; "" has none."""
    return text.split(",") if text else []


def _value(text: str) -> int | str:
    """Read a number, or a word; the record of options says if it is a right one."""
    try:
        return int(text)
    except ValueError:
        return text


def _options_in(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in (*OPTIONS, "num_workers")}
    options = {name: value for name, value in given.items() if value is not None}
    try:
        _, settled = with_workers(arguments.num_workers or 0, options)
        settled.pop("num_workers", None)
        checked = Options(**settled)
        if len(options) > 1:
            # Only then: it imports torch, which takes seconds.
            from shmloader.options import rules

            rules.check_alone(checked)
    except (TypeError, ValueError) as error:
        raise WrongArguments(str(error)) from None
    return options


def _program_in(arguments: argparse.Namespace) -> list[str]:
    """Return what follows the interpreter's own flags."""
    program: list[str] = arguments.program[arguments.program[:1] == ["--"] :]
    if not program:
        raise WrongArguments("give a script, or -m and a module, and its arguments")
    if arguments.is_module:
        return ["-m", *program]
    if not Path(program[0]).exists():
        raise CommandError(f"there is no file {program[0]}")
    return program
