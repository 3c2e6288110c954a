"""
Frames and series of polars: by way of pyarrow, whose buffers lie in the slot, if it is installed.

polars pickles each series as a file in Arrow's format, which is read into memory of its own again.
"""

import importlib
import importlib.util
from typing import Any

from shmloader.core.kinds import Reducer

_polars: Any = importlib.import_module("polars")
_has_arrow = importlib.util.find_spec("pyarrow") is not None
# What comes back from Arrow as it was.
_EXACT = frozenset(
    {"Boolean", "String", "Binary", "Date", "Datetime", "Duration", "Time", "Categorical", "Enum"}
    | {"Decimal", "Null", "Float32", "Float64"}
    | {f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)}
)


def reducer_of(kind: type) -> Reducer | None:
    """Find how frames and series are taken apart; a subclass has its own way."""
    if _has_arrow and kind is _polars.DataFrame:
        return _reduce_frame
    return _reduce_series if _has_arrow and kind is _polars.Series else None


def _reduce_frame(frame: Any) -> Any:
    if frame.width == 0 or not all(map(_is_exact, frame.dtypes)):
        return None
    table = frame.to_arrow(compat_level=_polars.CompatLevel.newest())
    return _build_frame, (table, frame.columns, [_order_of(each) for each in frame.get_columns()])


def _is_exact(kind: Any) -> bool:
    name = kind.base_type().__name__
    if name in ("List", "Array"):
        return _is_exact(kind.inner)
    if name == "Struct":
        return all(_is_exact(field.dtype) for field in kind.fields)
    return name in _EXACT


def _order_of(column: Any) -> bool | None:
    """Returns False for a column that is known as ascending, True for a descending one."""
    flags = column.flags
    return flags["SORTED_DESC"] if flags["SORTED_ASC"] or flags["SORTED_DESC"] else None


def _build_frame(table: Any, names: list[str], orders: list[bool | None]) -> Any:
    frame = _polars.from_arrow(table, rechunk=False)
    frame.columns = names  # an empty one got another
    known = [
        _polars.col(name).set_sorted(descending=order)
        for name, order in zip(names, orders, strict=True)
        if order is not None
    ]
    return frame.with_columns(known) if known else frame


def _reduce_series(series: Any) -> Any:
    parts = _reduce_frame(series.to_frame())
    return parts and (_build_series, parts[1])


def _build_series(*parts: Any) -> Any:
    return _build_frame(*parts).to_series()
