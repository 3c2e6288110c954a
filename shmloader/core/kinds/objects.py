"""Arrays of Python objects: texts and numbers are written natively, as a list of them is."""

from types import NoneType
from typing import Any

import numpy

_ATOMS = frozenset([int, float, bool, str, NoneType])
_SHORT = 4096  # longer texts may have been met by the batch's pickler


def reduce_objects(array: Any) -> Any:
    """Take an array of objects apart, if all are numbers, short texts or None."""
    if array.dtype.num != numpy.dtypes.ObjectDType().num:
        return None
    order = "F" if array.flags.fnc else "C"
    items = array.ravel(order).tolist()
    kinds = {*map(type, items)}
    if not kinds <= _ATOMS or (str in kinds and _longest(items, kinds) >= _SHORT):
        return None
    return _build_objects, (items, array.shape, order)


def _longest(items: list[Any], kinds: set[type]) -> int:
    texts = items if kinds == {str} else [item for item in items if type(item) is str]
    return max(map(len, texts))


def _build_objects(items: list[Any], shape: Any, order: Any) -> Any:
    made = numpy.empty(len(items), object)
    made[:] = items
    return made.reshape(shape, order=order)
