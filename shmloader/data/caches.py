"""Which caches a loader's dataset reads: it may be one, wrap one, or have one in an attribute."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import Dataset

from shmloader.data.cache import Cached

_DEPTH = 4  # how far they are looked for
_MANY = 1000  # a longer list holds data


def caches_in(dataset: Any) -> list[Cached]:
    """List the caches that a dataset is, wraps, or holds in attributes and lists, each once."""
    return list({id(found): found for found in _caches_in(dataset, _DEPTH)}.values())


def _caches_in(value: Any, depth: int) -> Iterator[Cached]:
    # By real types: a dataset may be a proxy of which nothing may be asked.
    kind = type(value)
    if issubclass(kind, Cached):
        yield value
    if depth > 0:
        for part in _parts(value, kind):
            yield from _caches_in(part, depth - 1)


def _parts(value: Any, kind: type) -> Iterable[Any]:
    if kind in (list, tuple):
        return value if len(value) <= _MANY else ()
    if kind is dict:
        return list(value.values()) if len(value) <= _MANY else ()
    if not issubclass(kind, Dataset):
        return ()
    return list(object.__getattribute__(value, "__dict__").values())
