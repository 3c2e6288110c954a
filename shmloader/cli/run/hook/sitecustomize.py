"""
Imported at the start of every Python below `shmloader run`, because its folder is on PYTHONPATH.

It costs nothing where torch is not imported, and does not import shmloader before a loader is
iterated: torch imports its loader while it is half imported itself.
"""

import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

_MODULE = "torch.utils.data.dataloader"


class _Finder:
    """Finds torch's loader as Python does, and puts a first use in front of two methods."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Answer for one module, once."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _wait_for_first_use(module.DataLoader)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wait_for_first_use(kind: Any) -> None:
    torchs = {name: getattr(kind, name) for name in ("__iter__", "_get_iterator")}

    def first(name: str) -> Callable[[Any], Any]:
        def method(self: Any) -> Any:
            for each, function in torchs.items():
                setattr(kind, each, function)
            try:
                from shmloader.cli.run import watching

                watching.begin()
            except ImportError as error:
                print(f"shmloader run: torch's loaders stay torch's: {error}", file=sys.stderr)
            return getattr(kind, name)(self)

        return method

    for name in torchs:
        setattr(kind, name, first(name))


def _import_the_next() -> None:
    """Import the sitecustomize that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    hidden = sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if hidden is not None:
            sys.modules[__name__] = hidden


if "SHMLOADER_RUN" in os.environ:
    sys.meta_path.insert(0, _Finder())
_import_the_next()
