"""What workers took the dataset with: its small attributes, which tell if it has changed since."""

import weakref
from types import NoneType
from typing import Any

from shmloader.samples.datasets import attributes_of

_PLAIN = bool, int, float, str, NoneType
_LONGEST_TUPLE, _LONGEST_TEXT, _MOST_BITS = 8, 200, 256
_MOST_LEVELS = 4  # of datasets that wrap another one


class Taken:
    """The dataset of one iterator, as its workers took it: a part."""

    def __init__(self) -> None:
        self._iterator: weakref.ref[Any] | None = None
        self._values: dict[str, str] = {}

    def made(self, iterator: Any, loader: Any) -> None:
        """Note what persistent workers, which start now, will keep."""
        if loader.persistent_workers:
            self._iterator = weakref.ref(iterator)
            self._values = values_of(loader.dataset)

    def changed(self, loader: Any) -> list[tuple[str, str, str]]:
        """List what the live workers of a loader have otherwise: its name, theirs, and the new."""
        live = loader._iterator
        if live is None or self._iterator is None or self._iterator() is not live:
            return []
        now = values_of(loader.dataset)
        return [
            (name, then, now[name])
            for name, then in self._values.items()
            if now.get(name, then) != then
        ]


def values_of(dataset: Any) -> dict[str, str]:
    """
    Write down the small attributes of a dataset, and of those that it wraps.

    No code of users' runs: not to find them, nor to compare what is written.
    """
    found: dict[str, str] = {}
    prefix = ""
    for _ in range(_MOST_LEVELS):
        own = {name: value for name, value in attributes_of(dataset) if type(name) is str}
        found |= {prefix + name: repr(value) for name, value in own.items() if _is_plain(value)}
        dataset, prefix = own.get("dataset"), f"{prefix}dataset."
    return found


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return len(value) <= _LONGEST_TUPLE and all(map(_is_scalar, value))
    return _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= _LONGEST_TEXT
    return kind in _PLAIN and (kind is not int or value.bit_length() <= _MOST_BITS)
