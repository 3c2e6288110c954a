"""
Subclasses of ndarray: recarray, matrix, memmap, masked arrays, and those of users.

numpy puts the bytes of these into the pickle, those of a plain array beside it.
"""

from typing import Any

import numpy
from numpy.ma import MaskedArray

from shmloader.core.kinds import Reducer, keeps

_OWN = ("__reduce__", "__reduce_ex__", "__setstate__")
_ndarray: Any = numpy.ndarray


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
    return _build, (type(array), _plain(array))


def _plain(array: Any) -> Any:
    plain = _ndarray.view(array, numpy.ndarray)
    # In the machine's byte order, as subclasses come out of numpy's pickles of any protocol.
    return plain.astype(plain.dtype.newbyteorder("=")) if plain.dtype.byteorder in "<>" else plain


def _build(kind: Any, plain: Any) -> Any:
    # Not as a view: a class is told of an array that is unpickled as of one without a template.
    is_c = plain.flags.c_contiguous
    raw = plain if is_c else plain.T
    return _ndarray.__new__(kind, plain.shape, plain.dtype, raw, order="C" if is_c else "F")


def _reduce_masked(array: Any) -> Any:
    if array.dtype.hasobject:
        return None
    # A view, so that two arrays of one mask get one each, as they do from numpy's pickle.
    mask = numpy.ma.getmaskarray(array).view()
    return _build_masked, (type(array), array._baseclass, _plain(array), mask, array._fill_value)


def _build_masked(kind: Any, base: Any, plain: Any, mask: Any, fill_value: Any) -> Any:
    data = plain if base is numpy.ndarray else _build(base, plain)
    made = kind.__new__(kind, data, mask=mask, dtype=data.dtype)
    made.fill_value = fill_value
    return made
