"""
Imported at the start of every Python below `shmloader run`, because its folder is on PYTHONPATH.

It costs nothing where torch is not imported, and does not import shmloader before a loader is
iterated: torch imports its loader while it is half imported itself.

Key invariant: the two methods stay where they were put. A program that puts a method of its own on
top of one calls ours from it, as it would torch's, and keeps its own.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

_MODULE = "torch.utils.data.dataloader"


class _Finder:
    """Finds torch's loader as Python does, and puts a watch in front of two methods."""

    def __init__(self, settings: str) -> None:
        """Take the variable's text: a program may clear its environment before it loads."""
        self._settings = settings

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
                _watch(module.DataLoader, self._settings)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch(kind: Any, settings: str) -> None:
    """Put a watch in front of what a loader's epochs go through; it begins with the first one."""
    torchs_iter, torchs_get_iterator = kind.__iter__, kind._get_iterator
    begun: list[Any] = []

    def watch() -> Any:
        if not begun:
            try:
                from shmloader.cli.run import observing

                begun.append(observing.begin(settings, torchs_get_iterator))
            except ImportError as error:
                begun.append(None)
                print(f"shmloader run: every loader runs as torch's own: {error}", file=sys.stderr)
        return begun[0]

    def __iter__(self: Any) -> Any:
        found = watch()
        return found.iterate(self, torchs_iter) if found else torchs_iter(self)

    def _get_iterator(self: Any) -> Any:
        found = watch()
        return found.make(self) if found else torchs_get_iterator(self)

    kind.__iter__, kind._get_iterator = __iter__, _get_iterator


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
    sys.meta_path.insert(0, _Finder(os.environ["SHMLOADER_RUN"]))
_import_the_next()
