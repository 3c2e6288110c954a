"""What every command of the command line shares."""

from __future__ import annotations

import argparse
import contextlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from shmloader.rooms import lacking

if TYPE_CHECKING:  # an extra, which `run` and `doctor` do without
    import click


_LONGEST_S = 1e9  # 30 years; sleeping for much more is an error


class CommandError(RuntimeError):
    """
    A command cannot go on; the text is for the user.

    Attributes:
        status: The exit status.
    """

    status = 1


class WrongArguments(CommandError):
    """A command does not take these arguments; the text says which ones it takes."""

    status = 2


@contextlib.contextmanager
def naming_the_room(what: str) -> Iterator[None]:
    """
    Import what may need a room of the package that is absent.

    Raises:
        CommandError: It needs one; the text names it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package, _, room = (error.name or "").partition(".")
        if package != "shmloader":
            raise
        raise CommandError(lacking(what, room.replace(".", "/"))) from None


def require_folder_of(path: Path) -> None:
    """
    Check that a file could be made, before the work of which it is the outcome.

    Raises:
        CommandError: Its directory does not exist.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise CommandError(f"there is no directory {folder} to write {path.name} to")


def require_extra(extra: str, packages: Mapping[str, str]) -> None:
    """
    Check that the packages of an optional extra are installed.

    Args:
        extra: Name of the extra in this project's metadata.
        packages: Module name to package name.

    Raises:
        CommandError: A module is missing; the text names its package and the remedy.
    """
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        raise CommandError(
            f"not installed: {', '.join(missing)}; "
            f"install what is missing with: pip install 'shmloader[{extra}]'"
        )


def run_click(command: click.Command, name: str, arguments: Sequence[str]) -> int:
    """
    Run a command that click parses, and return its exit status.

    Args:
        name: What the user typed before the arguments.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    import click

    try:
        status = command.main(list(arguments), name, standalone_mode=False)
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None  # click's name for it
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return status or 0


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks a paragraph that is one long line, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
        return super()._fill_text(text, width, indent)


def positive_number(text: str) -> float:
    """Parse an argument that must be a number of seconds above 0."""
    number = float(text)
    if not 0 < number <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{number} is not above 0, or more than {_LONGEST_S:.0e}")
    return number
