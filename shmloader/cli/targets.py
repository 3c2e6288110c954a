"""Functions of the user's own that a command is told by name, as module:function."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from shmloader.cli.command import CommandError, WrongArguments


def load(target: str) -> Callable[..., Any]:
    """
    Import a function of the user's, and say so on stderr: the import may run a whole program.

    Modules are found in this folder too, as with `python -m`.

    Args:
        target: "module:function"; the module may have dots, or be a file of this folder.
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
