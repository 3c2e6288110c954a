"""
Arrays of Arrow that view a part of their buffers: without the rest, which pyarrow's pickles hold.

Those of frames of polars are among them, and the chunks of tables.
"""

import importlib
from typing import Any

import numpy

from shmloader.core.kinds import Reducer, keeps

_arrow: Any = importlib.import_module("pyarrow")
_SMALL_BYTES = 4096  # of buffers: not worth a look
# Their buffers may hold any texts, so their rows are copied by way of another type.
_VIEWS = {
    getattr(_arrow, name)(): getattr(_arrow, plain)()
    for name, plain in (("string_view", "large_string"), ("binary_view", "large_binary"))
    if hasattr(_arrow, name)
}


def reducer_of(kind: type) -> Reducer | None:
    """Find how arrays are taken apart."""
    is_array = issubclass(kind, _arrow.Array) and keeps(kind, _arrow.Array, ("__reduce__",))
    return _reduce if is_array else None


def _reduce(array: Any) -> Any:
    whole = array.get_total_buffer_size()
    if whole < _SMALL_BYTES or whole <= 2 * _shown(array):
        return None
    lean = _arrow.concat_arrays([array])
    plain = _without_views(array.type)
    if plain != array.type:
        try:
            lean = lean.cast(plain).cast(array.type)
        except _arrow.ArrowNotImplementedError:  # a pyarrow of before these casts
            return None
    return lean.__reduce__()


def _shown(array: Any) -> int:
    """Returns how many bytes the rows of an array take."""
    if _without_views(array.type) == array.type:
        return int(array.nbytes)
    if array.type in _VIEWS:
        return _shown_by_views(array)
    inside = array.flatten()  # of lists their items, of structs their fields
    return sum(map(_shown, inside)) if isinstance(inside, list) else _shown(inside)


def _shown_by_views(array: Any) -> int:
    if len(array) == 0:
        return 0
    lengths = numpy.frombuffer(array.buffers()[1], numpy.int32)[::4]
    lengths = lengths[array.offset : array.offset + len(array)]
    return int(lengths[lengths > 12].sum(dtype=numpy.int64)) + 16 * len(array)  # or in the view


def _without_views(kind: Any) -> Any:
    """Find a type that holds the same in buffers that can be cut."""
    types = _arrow.types
    if kind in _VIEWS:
        return _VIEWS[kind]
    if types.is_struct(kind):
        return _arrow.struct([_field_without_views(field) for field in kind])
    if types.is_list(kind):
        return _arrow.list_(_field_without_views(kind.value_field))
    if types.is_large_list(kind):
        return _arrow.large_list(_field_without_views(kind.value_field))
    if types.is_fixed_size_list(kind):
        return _arrow.list_(_field_without_views(kind.value_field), kind.list_size)
    return kind


def _field_without_views(field: Any) -> Any:
    return field.with_type(_without_views(field.type))
