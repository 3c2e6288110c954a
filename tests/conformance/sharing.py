"""What of a value shares memory, or is one object, as a drawing that can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch


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
