"""
Subclasses of ndarray (recarray, matrix, memmap, masked arrays, those of users), and Python objects.

numpy puts the bytes of these into the pickle, those of a plain array beside it. Arrays of texts and
numbers that are Python objects are written natively, as a list of them is.
"""

from types import NoneType
from typing import Any

import numpy
from numpy.ma import MaskedArray

from shmloader.core.kinds import Reducer, keeps

_OWN = ("__reduce__", "__reduce_ex__", "__setstate__")
_ndarray: Any = numpy.ndarray
_ATOMS = frozenset([int, float, bool, str, NoneType])
_SHORT = 4096  # longer texts may have been met by the batch's pickler


def reducer_of(kind: type) -> Reducer | None:
    """Find how arrays of a class are taken apart: not if the class has a reduction of its own."""
    if issubclass(kind, MaskedArray):
        return _reduce_masked if keeps(kind, MaskedArray, (*_OWN, "__getstate__")) else None
    # A plain array is a leaf; where it is not, its own reduction has its memory beside the pickle.
    is_subclass = issubclass(kind, numpy.ndarray) and kind is not numpy.ndarray
    return _reduce if is_subclass and keeps(kind, numpy.ndarray, _OWN) else None


def _reduce(array: Any) -> Any:
    if array.dtype.hasobject:
        return None
    return _build, (type(array), _ndarray.view(array, numpy.ndarray))


def _build(kind: Any, plain: Any) -> Any:
    # Not as a view: a class is told of an array that is unpickled as of one without a template.
    is_c = plain.flags.c_contiguous
    raw = plain if is_c else plain.T
    return _ndarray.__new__(kind, plain.shape, plain.dtype, raw, order="C" if is_c else "F")


def _reduce_masked(array: Any) -> Any:
    if array.dtype.hasobject:
        return None
    plain, mask = _ndarray.view(array, numpy.ndarray), numpy.ma.getmaskarray(array)
    return _build_masked, (type(array), array._baseclass, plain, mask, array._fill_value)


def _build_masked(kind: Any, base: Any, plain: Any, mask: Any, fill_value: Any) -> Any:
    data = plain if base is numpy.ndarray else _build(base, plain)
    made = kind.__new__(kind, data, mask=mask, dtype=data.dtype)
    made.fill_value = fill_value
    return made


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
