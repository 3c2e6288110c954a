"""
How objects of other libraries travel: as arrays that lie in the slot, and what builds them again.

A library has a module here, with a function `reducer_of`, which is asked once for each class that
derives from one of that library's. The module is imported when the first of these classes is met:
a program without the library pays nothing for it.
"""

import importlib
from collections.abc import Callable
from typing import Any

# Takes an object apart as __reduce__ does, into a function and its arguments; None leaves it to the
# object's own reduction.
Reducer = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]] | None]

# By the package in which a class, or one that it derives from, was defined.
_MODULES = {
    "PIL": "images",
    "numpy": "arrays",
    "pyarrow": "arrow_arrays",
}
# By the class itself: a notebook may define another of the same name.
_found: dict[type, Reducer | None] = {}
_FOUND_MAX = 1000  # a dataset may make a class for each sample


def reducer_of(kind: type) -> Reducer | None:
    """Find what takes instances of a class apart; None: they are nothing to the modules here."""
    try:
        return _found[kind]
    except KeyError:
        if len(_found) >= _FOUND_MAX:
            _found.clear()
        return _found.setdefault(kind, _find(kind))


def _find(kind: type) -> Reducer | None:
    for base in kind.__mro__:
        package = str(base.__module__).partition(".")[0]
        if package in _MODULES:
            module = importlib.import_module(f"{__name__}.{_MODULES[package]}")
            reducer: Reducer | None = module.reducer_of(kind)
            return reducer
    return None


def keeps(kind: type, base: type, names: tuple[str, ...]) -> bool:
    """Returns True if a class has these attributes from a base, and has not replaced them."""
    return all(getattr(kind, name, None) is getattr(base, name, None) for name in names)
