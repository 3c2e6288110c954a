"""What every command of the command line shares."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec


class CommandError(RuntimeError):
    """A command cannot go on; the text is for the user."""


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


@contextlib.contextmanager
def until_reader_leaves() -> Iterator[None]:
    """End the block without an error as soon as what reads its output has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try to write the rest when it exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def positive_integer(text: str) -> int:
    """Parse an argument that must be a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def positive_number(text: str) -> float:
    """Parse an argument that must be a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{number} is not above 0, or not finite")
    return number
