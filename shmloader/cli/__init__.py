"""
The command line: one module or folder of this package per command, named in `COMMANDS`.

A command has `SUMMARY`, `add_arguments(parser)` and `run(arguments) -> int`, and imports nothing
that an extra brings until it runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from shmloader.cli.command import CommandError

COMMANDS = ("demo", "run", "bench", "top", "stacks", "trace")


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command of the command line.

    Args:
        argv: The arguments after the program's name; default: those of this process.

    Returns:
        The exit status: 0, 1 if the command could not go on or found a fault, 130 after Ctrl-C.
    """
    arguments = build_parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except CommandError as error:
        print(f"shmloader {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """Make the parser that knows every command."""
    parser = argparse.ArgumentParser(
        prog="shmloader", description="A DataLoader whose workers write batches to shared memory."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"{__name__}.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
