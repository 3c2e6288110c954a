"""Containers and objects around tensors, texts, and what refers to itself."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import torch

from tests.helpers.leaves.arrays import OBJECTS
from tests.helpers.leaves.leaf import Leaf, module
from tests.helpers.leaves.tensors import fields, ramp

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Sample:
    """A plain dataclass."""

    pixels: torch.Tensor
    label: int


class Holder:
    """An arbitrary class."""

    def __init__(self, pixels: torch.Tensor) -> None:
        self.pixels = pixels


def cycle() -> dict[str, Any]:
    made: dict[str, Any] = {"pixels": ramp()}
    made["self"] = made
    return made


def words() -> list[str]:
    return [f"word number {number}" for number in range(20_000)]


_AROUND_TENSORS = [
    Leaf("dict of 50 tensors", fields),
    Leaf("namedtuple", lambda: Pair(ramp(), "r")),
    Leaf("dataclass", lambda: Sample(ramp(), 3)),
    Leaf("attrs", lambda: module("tests.helpers.leaves.of_attrs").Sample(ramp(), 3), ("attrs",)),
    Leaf(
        "pydantic",
        lambda: module("tests.helpers.leaves.of_pydantic").Sample(pixels=ramp(), label=3),
        ("pydantic",),
    ),
    Leaf("object of a class", lambda: Holder(ramp())),
    Leaf("dict that contains itself", cycle),
]
LEAVES = [
    *(dataclasses.replace(leaf, holds_tensors=True) for leaf in _AROUND_TENSORS),
    Leaf("20,000 texts", words, in_slot=False, why=OBJECTS),
    Leaf("bytes of 4 MB", lambda: bytes(4 << 20), in_slot=False, why=OBJECTS),
    Leaf("bytearray of 4 MB", lambda: bytearray(4 << 20), in_slot=False, why=OBJECTS),
    Leaf(
        "100,000 numbers",
        lambda: [0.5 + each for each in range(100_000)],
        in_slot=False,
        why=OBJECTS,
    ),
]
