"""Tables: pandas and Arrow."""

from __future__ import annotations

from typing import Any

import numpy

from tests.helpers.leaves.arrays import OBJECTS
from tests.helpers.leaves.leaf import COUNT, Leaf, module

ROWS = COUNT // 8
PANDAS, ARROW = ("pandas",), ("pyarrow",)


def columns() -> dict[str, Any]:
    numbers = numpy.arange(ROWS)
    return {"id": numbers, "price": numbers / 8, "seen": numbers % 3 == 0}


def texts(count: int = ROWS) -> list[str]:
    return [f"text {number}" for number in range(count)]


def pandas_frame() -> Any:
    return module("pandas").DataFrame(columns())


def pandas_series(**arguments: Any) -> Any:
    return module("pandas").Series(texts(), **arguments)


def categories() -> Any:
    pandas = module("pandas")
    return pandas.Series(pandas.Categorical.from_codes(numpy.arange(ROWS) % 5, list("abcde")))


def nullable() -> Any:
    pandas = module("pandas")
    return pandas.Series(
        pandas.arrays.IntegerArray(numpy.arange(ROWS), numpy.arange(ROWS) % 7 == 0)
    )


def dates() -> Any:
    pandas = module("pandas")
    return pandas.DataFrame(
        {"x": numpy.arange(ROWS)}, pandas.date_range("2020", periods=ROWS, freq="s")
    )


def record_batch() -> Any:
    arrow = module("pyarrow")
    return arrow.RecordBatch.from_pydict({k: arrow.array(v) for k, v in columns().items()})


def table(chunks: int = 1) -> Any:
    return module("pyarrow").Table.from_batches([record_batch()] * chunks)


def dictionary() -> Any:
    arrow = module("pyarrow")
    return arrow.DictionaryArray.from_arrays((numpy.arange(ROWS) % 5).astype("i4"), list("abcde"))


LEAVES = [
    Leaf("pandas, numbers", pandas_frame, PANDAS),
    Leaf("pandas, dates", dates, PANDAS),
    Leaf("pandas, strings", pandas_series, ("pandas", "pyarrow")),
    Leaf(
        "pandas, objects", lambda: pandas_series(dtype=object), PANDAS, in_slot=False, why=OBJECTS
    ),
    Leaf("pandas, categories", categories, PANDAS),
    Leaf("pandas, nullable", nullable, PANDAS),
    Leaf("Arrow RecordBatch", record_batch, ARROW),
    Leaf("Arrow Table", table, ARROW),
    Leaf("Arrow Table of 20 chunks", lambda: table(20), ARROW),
    Leaf("Arrow dictionary", dictionary, ARROW),
    Leaf("Arrow strings", lambda: module("pyarrow").array(texts()), ARROW),
]
