"""
The command line: a table of commands, each a function in a module or folder of its own.

Only the command that was asked for is imported.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from shmloader.cli.command import CommandError, naming_the_component
from shmloader.cli.output import ReaderLeft, watched_output
from shmloader.setup import requirements


class Command(NamedTuple):
    """
    Where a command is.

    Attributes:
        target: "module:name" of a function (arguments) -> int.
        summary: Its line in the list of commands.
    """

    target: str
    summary: str

    def run(self, name: str, arguments: Sequence[str]) -> int:
        """Import the command and run it, unless what it needs of the package is absent."""
        if requirements.LACKING is not None and name != "run":
            raise CommandError(f"needs slots of shared memory: {requirements.LACKING}")
        module, _, attribute = self.target.partition(":")
        with naming_the_component(f"shmloader {name}"):
            found: Any = getattr(importlib.import_module(module), attribute)
        status: int = found(arguments)
        return status


COMMANDS = {
    "run": Command(
        "shmloader.cli.run:main",
        "run a program unchanged, with every torch DataLoader in it served by shmloader",
    ),
    "doctor": Command(
        "shmloader.cli.doctor:main",
        "check what this machine lacks, or is slow at, for a loader, and name the remedies",
    ),
    "top": Command(
        "shmloader.cli.top:main",
        "show what running training jobs wait for: loaders, slots, and each worker at its sample",
    ),
    "stacks": Command(
        "shmloader.cli.stacks:main",
        "print the Python stacks of a training process's hung workers, with py-spy",
    ),
    "trace": Command(
        "shmloader.cli.trace:main",
        "write a trace of a running training process's last batches, for ui.perfetto.dev",
    ),
    "tune": Command(
        "shmloader.cli.tune:main", "run your loader with other options, and report which to set"
    ),
    "publish": Command(
        "shmloader.cli.publish:main",
        "run your loader once for several training processes of this machine, which subscribe",
    ),
    "bench": Command(
        "shmloader.cli.bench:main",
        "compare torch's loader with this one; --headspace: measure what faster data would "
        "gain you",
    ),
}

_HELP = """\
usage: shmloader [--version] [--help] COMMAND [ARGS ...]

A DataLoader whose workers write batches to shared memory.

commands:
{commands}

`shmloader COMMAND --help` has options and examples. `python -m shmloader` is the same program.

exit status: 0 done, or the reader of the output closed it; 1 could not continue, or found a fault;
2 wrong arguments; 130 after Ctrl-C.
`run` ends with the status of its program.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default with this process's arguments, and return the exit status."""
    name, *arguments = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    try:
        with watched_output():
            return _run(name, arguments)
    except ReaderLeft as left:
        return left.status
    except CommandError as error:
        typed = f"shmloader {name}" if name in COMMANDS else "shmloader"
        print(f"{typed}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130


def _run(name: str, arguments: Sequence[str]) -> int:
    if name in ("-h", "--help"):
        print(help_text(), end="")
        return 0
    if name == "--version":
        print(version_text())
        return 0
    if name not in COMMANDS:
        print(f"shmloader: no command {name}: one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return COMMANDS[name].run(name, arguments)


def help_text() -> str:
    """List the commands; imports none of them."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{each.summary}" for name, each in COMMANDS.items()]
    return _HELP.format(commands="\n".join(lines))


def version_text() -> str:
    """Say the versions on which the behaviour of a loader depends."""
    others = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    return f"shmloader {version('shmloader')} ({others}, Python {platform.python_version()})"
