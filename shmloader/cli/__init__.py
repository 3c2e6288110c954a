"""
The command line: a table of commands, each the function `main` of a module or folder of its name.

Only the command that was asked for is imported.
"""

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from shmloader.cli.command import CommandError, naming_the_component
from shmloader.setup import requirements

COMMANDS = {
    "run": "run a program unchanged, with every torch DataLoader in it served by shmloader",
    "doctor": "check what this machine lacks, or is slow at, for a loader, and name the remedies",
    "top": "show what running training jobs wait for: loaders, slots, each worker at its sample",
    "trace": "write a trace of a running training process's last batches, for ui.perfetto.dev",
    "tune": "run your loader with other options, and report which to set",
    "publish": "run your loader once for several training processes of this machine",
}

_EPILOG = """\
`shmloader COMMAND --help` has options and examples. `python -m shmloader` is the same program.

exit status: 0 done, or the reader of the output closed it; 1 could not continue, or found a fault;
2 wrong arguments; 130 after Ctrl-C.
`run` ends with the status of its program.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default with this process's arguments, and return the exit status."""
    name, *arguments = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    typed = f"shmloader {name}" if name in COMMANDS else "shmloader"
    try:
        try:
            return _run(name, arguments)
        finally:
            if sys.stdout is not None:  # it is if the program was started with it closed
                sys.stdout.flush()
    except OSError as error:
        if not _is_output_lost():
            raise
        if isinstance(error, BrokenPipeError):  # its reader has seen enough, as `head` has
            return 0
        print(f"{typed}: its output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except CommandError as error:
        print(f"{typed}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130


def _run(name: str, arguments: Sequence[str]) -> int:
    _parser().parse_args([name])  # ends here for help, and what is no command
    if requirements.LACKING is not None and name != "run":
        raise CommandError(f"needs slots of shared memory: {requirements.LACKING}")
    with naming_the_component(f"shmloader {name}"):
        command: Any = importlib.import_module(f"shmloader.cli.{name}")
    return int(command.main(arguments))


def _is_output_lost() -> bool:
    """Returns True if standard output takes no more; the rest, and what comes, is dropped then."""
    try:
        print(flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # Python would try to write the rest at its exit
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shmloader",
        description="A DataLoader whose workers write batches to shared memory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    return parser


def version_text() -> str:
    """Say the versions on which the behaviour of a loader depends."""
    others = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    return f"shmloader {version('shmloader')} ({others}, Python {platform.python_version()})"
