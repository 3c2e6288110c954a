"""
Arrays of Arrow that view a part of their buffers: without the rest, which pyarrow's pickles hold.

The chunks of tables are among them.
"""

import importlib
from typing import Any

from shmloader.core.kinds import Reducer, keeps

_arrow: Any = importlib.import_module("pyarrow")
_SMALL_BYTES = 4096  # of buffers: not worth a look


def reducer_of(kind: type) -> Reducer | None:
    """Find how arrays are taken apart."""
    is_array = issubclass(kind, _arrow.Array) and keeps(kind, _arrow.Array, ("__reduce__",))
    return _reduce if is_array else None


def _reduce(array: Any) -> Any:
    whole = array.get_total_buffer_size()
    try:
        is_lean = whole < _SMALL_BYTES or whole <= 2 * array.nbytes
    except _arrow.ArrowNotImplementedError:  # of views of texts
        return None
    return None if is_lean else _arrow.concat_arrays([array]).__reduce__()
