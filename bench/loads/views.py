"""Batches that view a part of something large that the dataset has."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from bench.loads.wholes import Load, batches

WIDTH = 1_000  # numbers in a row of the table
KINDS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "a patch of an image": lambda table, turn: table.view(4, -1, WIDTH)[
        :, turn : turn + 224, turn : turn + 224
    ],
    "a column of a table": lambda table, turn: table[:, turn],
    "every 60th row of a table": lambda table, turn: table[turn::60],
    "conjugated rows": lambda table, turn: table.view(torch.complex64)[turn].conj(),
}


def of_table(count: int, kind: str, rows: int) -> Load:
    """Views of a table of floats."""
    table = torch.arange(rows * WIDTH, dtype=torch.float32).view(rows, WIDTH)
    return batches(count, lambda turn: [turn, KINDS[kind](table, turn)])


def frame_rows(count: int, rows: int) -> Load:
    """100 rows of a frame of polars with texts."""
    polars: Any = importlib.import_module("polars")
    texts = [f"some longer text, number {number}" for number in range(rows)]
    frame = polars.DataFrame({"key": range(rows), "value": texts})
    return batches(count, lambda turn: [turn, frame[100 * turn : 100 * (turn + 1)]])
