"""What every command of the command line shares."""

import argparse
import contextlib
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shmloader.setup.components import lacking

_LONGEST_S = 1e9  # 30 years; sleeping for much more is an error


class CommandError(RuntimeError):
    """A command cannot go on; the text is for the user, `status` the exit status."""

    status = 1


class WrongArguments(CommandError):
    """A command does not take these arguments; the text says which ones it takes."""

    status = 2


@contextlib.contextmanager
def naming_the_component(what: str) -> Iterator[None]:
    """Import what may need a component of the package that is absent."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, _, module = (error.name or "").partition(".")
        if package != "shmloader":
            raise
        raise CommandError(lacking(what, module.replace(".", "/"))) from None


def require_folder_of(path: Path) -> None:
    """Check that a file could be made, before the work of which it is the outcome."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise CommandError(f"there is no directory {folder} to write {path.name} to")


def parser_of(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Make the parser of a command, which explains the command too."""
    return argparse.ArgumentParser(
        prog=f"shmloader {command}",
        description=textwrap.fill(description, 78),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # leaves examples as they are
    )


def seconds(least: float) -> Callable[[str], float]:
    """Make what parses an argument that is a number of seconds, from the least one on."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            number = float(text)
            if least <= number <= _LONGEST_S:
                return number
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of seconds from {least:g} to {_LONGEST_S:.0e}"
        )

    return parse


def load_function(target: str) -> Callable[..., Any]:
    """
    Import a function, "module:function", and say so on stderr: it may run a whole program.

    Modules are found in this folder too, as with `python -m`, even by their files' names.
    """
    module_name, _, name = target.partition(":")
    module_name = module_name.removesuffix(".py")
    if not module_name or not name:
        raise WrongArguments(f"{target}: write it as module:function, such as train:make_loader")
    if "" not in sys.path:
        sys.path.insert(0, "")
    print(f"importing {module_name}, to call {name}()", file=sys.stderr, flush=True)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module is there, and lacks one
        raise CommandError(
            f"there is no module {module_name}, either in this folder or on PYTHONPATH"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        raise CommandError(f"the module {module_name} has no function {name}")
    function: Callable[..., Any] = found
    return function
