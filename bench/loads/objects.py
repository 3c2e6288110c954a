"""Batches of small Python objects, alone and beside a tensor."""

import collections
import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Callable

import numpy as np
import torch

from bench.loads.wholes import Load, batches

Box = collections.namedtuple("Box", "left top")


@dataclasses.dataclass
class Note:
    """A dataclass of two numbers."""

    number: int
    half: float


class Plain:
    """An object with two attributes."""

    def __init__(self, number: int):
        self.number, self.half = number, number / 2


class Word(str):
    """A text of a class of its own."""


class Colour(enum.Enum):
    """Two names."""

    RED = 0
    BLUE = 1


STRUCTURE = [("time", "i8"), ("energy", "f4")]
KINDS: dict[str, Callable[[int], object]] = {
    "dataclasses": lambda number: Note(number, number / 2),
    "objects": Plain,
    "namedtuples": lambda number: Box(number, number / 2),
    "datetimes": lambda number: datetime.datetime(2020, 1, 1) + datetime.timedelta(number),
    "decimals": decimal.Decimal,
    "UUIDs": lambda number: uuid.UUID(int=number),
    "frozensets": lambda number: frozenset([number]),
    "sets": lambda number: {number, number + 1},
    "Counters": lambda number: collections.Counter(f"{number}"),
    "OrderedDicts": lambda number: collections.OrderedDict(number=number),
    "texts of a subclass": lambda number: Word(f"word {number}"),
    "enums": lambda number: Colour(number % 2),
    "large numbers": lambda number: (1 << 70) + number,
    "structured arrays": lambda number: np.full(8, number, np.dtype(STRUCTURE)),
    "object arrays": lambda number: np.array([number, f"text {number}"], object),
}


def of_kind(count: int, kind: str, size: int) -> Load:
    """Objects of one kind."""
    made = [KINDS[kind](number) for number in range(size)]
    return batches(count, lambda turn: [turn, *made])


def beside_a_tensor(count: int, size: int) -> Load:
    """Dataclasses beside a tensor of 4 MB."""
    notes = [Note(number, number / 2) for number in range(size)]
    return batches(count, lambda turn: {"pixels": torch.full((1 << 20,), 1.0 * turn), "is": notes})
