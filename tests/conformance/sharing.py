"""What of a value shares memory, or is one object, as a drawing that can be compared."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

ATOMS = (int, float, bool, complex, types.NoneType, type, types.FunctionType)


def drawing(value: Any) -> list[str]:
    """Name, of each pair of arrays and tensors in a value, what the two have in common."""
    found = list(arrays_in(value))
    return [
        f"{one} {other}: {relation(found[one], found[other])}"
        for one in range(len(found))
        for other in range(one)
        if relation(found[one], found[other])
    ]


def relation(one: Any, other: Any) -> str:
    """Returns "same" for one object, "joined" for shared memory, or "" for nothing in common."""
    if one is other:
        return "same"
    first, second = map(as_array, (one, other))
    return "joined" if numpy.shares_memory(first, second) else ""


def as_array(value: Any) -> numpy.ndarray:
    if isinstance(value, torch.UntypedStorage):
        value = torch.tensor([]).set_(value)
    return value.detach().numpy() if isinstance(value, torch.Tensor) else numpy.asarray(value)


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield the arrays and tensors of a value, in order, also of its objects."""
    if isinstance(value, torch.Tensor | numpy.ndarray | torch.UntypedStorage):
        yield value
        if isinstance(value, numpy.ma.MaskedArray):
            yield value.mask
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from arrays_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from arrays_in(each)
    else:
        yield from arrays_in(getattr(value, "__dict__", {}))


def picture(value: Any, seen: dict[int, Any]) -> Any:
    """
    Draw a value so that two are drawn alike only if they share alike.

    An object is drawn where it is met first, and after that by its turn.
    """
    if isinstance(value, ATOMS):
        return value
    if id(value) in seen:
        return f"object {seen[id(value)][0]}"
    seen[id(value)] = len(seen), value
    if isinstance(value, str | bytes):
        return [value]
    return type(value).__name__, [picture(part, seen) for part in _parts_of(value)]


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | numpy.ndarray | numpy.generic):
        return [value.tolist()]
    if isinstance(value, dict):
        return [*value.keys(), *value.values(), _vars_of(value)]
    if isinstance(value, list | tuple | frozenset | collections.deque):
        return [*value, _vars_of(value)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args]
    return [_vars_of(value)]


def _vars_of(value: Any) -> Any:
    # Not the dictionary itself: some have one, whatever it holds, and it is an object too.
    return None if not hasattr(value, "__dict__") else tuple(vars(value).items())
