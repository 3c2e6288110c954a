"""
Every kind of leaf inside a pickled object and beside it, with every other kind, however delivered.

What is written by the walk over a batch and what is written for its pickle must all be read, and
what both meet is one object.
"""

import datetime
import decimal
import functools
import itertools

import numpy
import pytest
import torch

import shmloader
from shmloader import DataLoader, Pool, SharedList
from tests.conformance.made import Node
from tests.helpers.datasets import Computed, identity
from tests.helpers.leaves.parts import are_same
from tests.torch.test_kinds import NATIVE, PICKLED


class Claims:
    """An object that claims to be a class."""

    __class__ = property(lambda self: type)

    def __reduce__(self):
        return Claims, ()

    def __repr__(self):
        return "claims"


NUMBERS = int, complex  # of which each is a new one, as in a pickle
STRUCTURE = [("time", "i8"), ("energy", "f4")]
OF_KINDS = (
    *("torch.int64", "transposed", "subclass", "sparse coo", "numpy text"),
    *("numpy structured", "objects of objects", "image", "str subclass", "bytearray"),
    *("namedtuple", "dataclass", "OrderedDict", "deque", "set", "enum", "class"),
)
LEAVES = {
    **{name: {**NATIVE, **PICKLED}[name] for name in OF_KINDS},
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "meta": lambda: torch.empty(3, device="meta"),
    "storage": lambda: torch.arange(3).untyped_storage(),
    "array": lambda: numpy.arange(4),
    "array with metadata": lambda: numpy.ones(2, numpy.dtype("i4", metadata={"unit": "m"})),
    "array of nothing": lambda: numpy.zeros(3, []),
    "masked array": lambda: numpy.ma.masked_array([1, 2], [True, False]),
    "type": lambda: numpy.dtype(STRUCTURE),
    "type with metadata": lambda: numpy.dtype("i4", metadata={"unit": "m"}),
    "scalar": lambda: numpy.float32(1.5),
    "structured scalar": lambda: numpy.zeros(1, STRUCTURE)[0],
    "number": lambda: 2**70,
    "complex": lambda: 1.5 - 2j,
    "text": lambda: "text " * 2000,
    "bytes": lambda: bytes(5000),
    "list": lambda: [1, [2.5]],
    "tuple": lambda: (1, (2.5, None)),
    "dict": lambda: {"a": {1: True}},
    "date": lambda: datetime.datetime(2020, 1, 1),
    "decimal": lambda: decimal.Decimal("1.5"),
    "object": lambda: Node(tensor=torch.ones(2), number=1),
    "partial": lambda: functools.partial(torch.add, torch.ones(1)),
    "a class": lambda: Claims,
    "function": lambda: len,
    "object with another class": Claims,
}
PAIRS = list(itertools.product(LEAVES, LEAVES))


def make_pair(inside, beside):
    """Make a batch of an object, with one leaf in it and another one beside it and in it."""
    leaf, other = LEAVES[inside](), LEAVES[beside]()
    return [other, Node(inside=leaf, beside=other), leaf, getattr(leaf, "dtype", None)]


def wrong_parts(names, batch):
    """List what of a delivered pair is not what was made, or is not one object any more."""
    beside, holder, leaf, dtype = batch
    one_each = {
        "beside": beside is holder.beside or isinstance(beside, NUMBERS),
        "inside": leaf is holder.inside or isinstance(leaf, NUMBERS),
    }
    if isinstance(leaf, numpy.ndarray) and leaf.dtype.fields:
        one_each["type"] = leaf.dtype is dtype
    wrong = [what for what, is_one in one_each.items() if not is_one]
    same = are_same(make_pair(*names), batch)
    return [(names, what) for what in (wrong if same else [*wrong, "value"])]


def pair(index):
    return make_pair(*PAIRS[index])


def by_list():
    return [
        wrong_parts(*each)
        for each in zip(PAIRS, SharedList(Computed(len(PAIRS), pair)), strict=True)
    ]


def by_cache():
    kept = shmloader.cached(Computed(len(PAIRS), pair), max_bytes=1 << 24)
    return [wrong_parts(names, kept[i]) for _ in range(2) for i, names in enumerate(PAIRS)]


def by_loader():
    loader = DataLoader(
        Computed(len(PAIRS), pair), batch_size=None, collate_fn=identity, num_workers=1, timeout=60
    )
    return [wrong_parts(*each) for each in zip(PAIRS, loader, strict=True)]


def by_pool():
    with Pool(1) as pool:
        calls = zip(PAIRS, pool.map(make_pair, *zip(*PAIRS, strict=True)), strict=True)
        return [wrong_parts(*each) for each in calls]


def by_request():
    with Pool(1) as pool:
        made = [make_pair(*names) for names in PAIRS]
        return list(pool.map(wrong_parts, PAIRS, made, timeout=60))


@pytest.mark.parametrize("deliver", [by_list, by_cache, by_loader, by_pool, by_request])
def test_every_pair_arrives(deliver):
    """All of a pair arrives, equal, and what is one object in it stays one."""
    assert [] == list(itertools.chain(*deliver()))
