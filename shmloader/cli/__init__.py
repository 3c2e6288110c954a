"""
The command line: one module of this package per command.

A command's module has `SUMMARY`, `add_arguments(parser)` and `run(arguments) -> int`, imports
nothing that an extra brings until it runs, and is named in `COMMANDS`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from shmloader.cli.command import CommandError

COMMANDS = ("demo", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command of the command line.

    Args:
        argv: The arguments after the program's name; default: those of this process.

    Returns:
        The exit status: 0, 1 where the command could not go on or found a fault, 130 after Ctrl-C.
    """
    arguments = build_parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except CommandError as error:
        print(f"shmloader {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """
    Make the parser that knows every command.
    """
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
