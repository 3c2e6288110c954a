"""
Whole batches of many kinds. Making one costs next to nothing: its parts lie in the dataset.

Each function makes what a loader gets, when it is called, in the process that uses it. Sample i of
the dataset is batch i, and every batch holds its number, so no two of an epoch are equal. Tensors
are new in each batch: torch moves a tensor that it sends to shared memory, and sending it again
would be free.
"""

import collections
import enum
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.loads import Made, as_it_is, kinds

KEYS = [sys.intern(f"field_{number}") for number in range(20)]
NAMES = [f"class number {number}" for number in range(20)]


Load = dict[str, Any]  # the arguments of a loader


class Sentence:
    """An object with a vocabulary that all others refer to too."""

    def __init__(self, words: list[int], vocabulary: dict[str, int]):
        self.words, self.vocabulary = words, vocabulary


def batches(count: int, make: Callable[[int], object]) -> Load:
    """Deliver whole batches, which no collate function touches."""
    return {"dataset": Made(count, make), "batch_size": None, "collate_fn": as_it_is}


def columns(count: int, rows: int, width: int) -> Load:
    """One table, split into its columns: leaves that overlap."""
    table = torch.arange(rows * width, dtype=torch.float32).reshape(rows, width)
    return batches(count, lambda turn: [turn, *table.clone().unbind(1)])


def vocabulary(count: int) -> Load:
    """64 objects that refer to one dict of 5,000 words."""
    words = {f"word number {number}": number for number in range(5_000)}
    return batches(count, lambda turn: [Sentence([turn, place], words) for place in range(64)])


def same(count: int, item: bytes | str, times: int) -> Load:
    """One object, many times."""
    return batches(count, lambda turn: [turn, [item] * times])


def object_array(count: int) -> Load:
    """An ndarray of 50,000 Python strings."""
    texts = np.array([f"text number {number}" for number in range(50_000)], dtype=object)
    return batches(count, lambda turn: [turn, texts])


def shared_slices(count: int, size: int) -> Load:
    """Slices of a dataset that was put into shared memory by share_memory_()."""
    data = torch.zeros(2 * size, dtype=torch.uint8).share_memory_()
    data[::4096] = torch.arange(len(data[::4096])) % 251
    return batches(count, lambda turn: [turn, data[turn % 2 * size :][:size]])


def many_tensors(count: int, leaves: int) -> Load:
    """Tensors of 8 numbers."""
    table = torch.arange(8.0 * leaves).reshape(leaves, 8)
    return batches(count, lambda turn: [turn, *(row.clone() for row in table)])


def many_arrays(count: int, leaves: int) -> Load:
    """Ndarrays of 64 numbers."""
    arrays = [np.full(64, number, np.float32) for number in range(leaves)]
    return batches(count, lambda turn: [turn, *arrays])


def _class_names(turn: int) -> list[str]:
    return [NAMES[(turn + place) % 20] for place in range(20_000)]


def _literal_keys(turn: int) -> list[dict]:
    return [dict.fromkeys(KEYS, turn + row) for row in range(1_000)]


def _nested_dicts(turn: int) -> list[dict]:
    """Make records as a reader of JSON does."""

    def record(row: int) -> dict:
        box = {"left": row, "top": turn, "size": {"width": 1.5, "height": math.pi}}
        return {"id": row, "name": f"record {row}", "tags": ["a", "b", turn], "box": box}

    return [record(row) for row in range(500)]


class Word(str):
    """A text of a class of its own."""


class Colour(enum.Enum):
    """Two names."""

    RED = 0
    BLUE = 1


OBJECTS: dict[str, Callable[[int], object]] = {
    "dataclasses": lambda number: kinds.Item(None, number, "name"),
    "objects": lambda number: Sentence([number], {}),
    "namedtuples": lambda number: kinds.Point(number, number / 2, None),
    "OrderedDicts": lambda number: collections.OrderedDict(number=number),
    "texts of a subclass": lambda number: Word(f"word {number}"),
    "enums": lambda number: Colour(number % 2),
    "large numbers": lambda number: (1 << 70) + number,
    "object arrays": lambda number: np.array([number, f"text {number}"], object),
}
_MANY = ("py_objects", "decimals_uuid", "sets_and_counters", "structured_np")
OBJECTS |= {name: kinds.KINDS[name].make for name in _MANY}


def objects(count: int, kind: str, size: int) -> Load:
    """Objects of one kind."""
    made = [OBJECTS[kind](number) for number in range(size)]
    return batches(count, lambda turn: [turn, *made])


def beside_a_tensor(count: int, size: int) -> Load:
    """Dataclasses beside a tensor of 4 MB."""
    items = [OBJECTS["dataclasses"](number) for number in range(size)]
    return batches(count, lambda turn: {"pixels": torch.full((1 << 20,), 1.0 * turn), "is": items})


_WIDTH = 1_000  # numbers in a row of the table
VIEWS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "a patch of an image": lambda table, turn: table.view(4, -1, _WIDTH)[
        :, turn : turn + 224, turn : turn + 224
    ],
    "a column of a table": lambda table, turn: table[:, turn],
    "every 60th row of a table": lambda table, turn: table[turn::60],
    "conjugated rows": lambda table, turn: table.view(torch.complex64)[turn].conj(),
}


def views(count: int, kind: str, rows: int) -> Load:
    """Views of a table of floats."""
    table = torch.arange(rows * _WIDTH, dtype=torch.float32).view(rows, _WIDTH)
    return batches(count, lambda turn: [turn, VIEWS[kind](table, turn)])


class Kind(NamedTuple):
    """
    A kind of batch.

    Attributes:
        load: Makes the dataset.
        most: What of torch's time ours may take.
        why: Why it may take more.
    """

    load: Callable[[], Load]
    most: float = 1.5
    why: str = ""


def _kinds() -> dict[str, Kind]:
    count, text = 40, "shared " * 3_000
    made = {
        "columns of (16384, 500)": partial(columns, count, 16_384, 500),
        "columns of (65536, 64)": partial(columns, count, 65_536, 64),
        "one vocabulary": partial(vocabulary, count),
        "same bytes": partial(same, count, bytes(range(250)) * 4_000, 64),
        "same str": partial(same, count, text, 512),
        "class names": partial(batches, count, _class_names),
        "dict keys": partial(batches, count, _literal_keys),
        "object array": partial(object_array, count),
        "200 small tensors": partial(many_tensors, count, 200),
        "2,000 small arrays": partial(many_arrays, count, 2_000),
        "nested dicts": partial(batches, count, _nested_dicts),
    }
    # Of which torch pickles all.
    near = {
        **{f"3,000 {kind}": partial(objects, count, kind, 3_000) for kind in OBJECTS},
        "dataclasses beside a tensor": partial(beside_a_tensor, count, 3_000),
    }
    shared = {kind: partial(views, count, kind, 50_000) for kind in VIEWS}
    shared["slices of shared data"] = partial(shared_slices, count, 100_000_000)
    why = (
        "torch moves the whole to shared memory once, and hands that out; here a batch has a copy "
        "of its part, and is what it was when its worker sent it (docs/differences.md)"
    )
    return {
        **{name: Kind(load) for name, load in made.items()},
        **{name: Kind(load, why=why) for name, load in shared.items()},
        **{name: Kind(load, 1.2) for name, load in near.items()},
    }


KINDS = _kinds()
