"""
Invariant 7 and the table of kinds: all that torch delivers arrives equal, natively or as a pickle.
"""

import collections
import enum
import functools
import math
from collections.abc import Mapping

import numpy
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from shmloader import DataLoader
from tests.conformance.made import Node, Pair, Record
from tests.helpers.datasets import Computed, deliver, identity
from tests.helpers.forgery import Forger
from tests.helpers.leaves.parts import are_same

# The table. Each entry makes one batch; `pickled` is True if a part of it travels as a pickle.


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Named(torch.Tensor):
    """A subclass of Tensor with an attribute."""


class ReadOnly(Mapping):
    """A Mapping that is no dict."""

    def __init__(self, items):
        self._items = items

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Counting(dict):
    """A dict that counts how often it was written to."""

    writes = 0

    def __setitem__(self, key, value):
        self.writes += 1
        super().__setitem__(key, value)


class Logging(list):
    """A list that remembers how it was filled."""

    def extend(self, values):
        self.extended = getattr(self, "extended", 0) + 1
        super().extend(values)


class Several(dict):
    """A dict that keeps all values that a key was given, and lists each with its key."""

    def __setitem__(self, key, value):
        self.setdefault(key, []).append(value)

    def items(self):
        return ((key, value) for key, values in super().items() for value in values)


class Lender(list):
    """A list whose items can be had once."""

    def __init__(self, *items):
        self.lent = iter(items)

    def __reduce__(self):
        return list, (), None, self.lent


class Word(str):
    """A str with a __dict__."""


def counting():
    made = Counting()
    made["a"], made["b"] = 1, torch.ones(2)
    return made


def logging():
    made = Logging([1])
    made.extend([2, torch.ones(1)])
    return made


def several():
    made = Several()
    made["a"], made["b"], made["a"] = 1, torch.ones(2), torch.ones(3)
    return made


def with_an_attribute(made):
    made.loader = lambda: None
    return made


def cycle():
    made = []
    made.append({"back": 1})
    return made


def word():
    made = Word("text")
    made.language = "en"
    return made


def named():
    made = torch.arange(4.0).as_subclass(Named)
    made.label = "four"
    return made


def ramp(dtype):
    return torch.arange(24).reshape(2, 3, 4).to(dtype)


def read_only():
    array = numpy.arange(5)
    array.flags.writeable = False
    return array


def same_twice():
    one = torch.arange(5)
    return [one, one, {"again": one}]


def structured():
    return numpy.array([(1, 2.5, b"ab")], dtype=[("n", "<i4"), ("x", ">f8"), ("s", "S3")])


def nest(depth):
    return functools.reduce(
        lambda inner, level: [inner, {level: inner}], range(depth), torch.ones(1)
    )


TENSOR_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
ARRAY_DTYPES = "?bBhHiIlLqQefdFD" + "gG"

NATIVE = {
    **{str(dtype): lambda dtype=dtype: ramp(dtype) for dtype in TENSOR_DTYPES},
    **{f"numpy {code}": lambda code=code: numpy.arange(6).astype(code) for code in ARRAY_DTYPES},
    "transposed": lambda: ramp(torch.float32).transpose(0, 2),
    "sliced": lambda: ramp(torch.int64)[:, ::2, 1:3],
    "expanded": lambda: torch.arange(3).expand(4, 3),
    "channels_last": lambda: torch.arange(120.0).view(2, 3, 4, 5).to(
        memory_format=torch.channels_last
    ),
    "0-dim": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty((3, 0, 2)),
    "same twice": same_twice,
    "overlapping": lambda: (lambda base: [base[:5], base[3:], base])(torch.arange(8)),
    "numpy strided": lambda: numpy.arange(20).reshape(4, 5)[::-2, ::2],
    "numpy broadcast": lambda: numpy.broadcast_to(numpy.arange(3), (2, 3)),
    "numpy big-endian": lambda: numpy.arange(5, dtype=">i4"),
    "numpy read-only": read_only,
    "numpy structured": structured,
    "numpy datetime": lambda: numpy.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    "numpy timedelta": lambda: numpy.array([1, 2], dtype="timedelta64[ms]"),
    "numpy text": lambda: numpy.array(["a", "bcd"]),
    "numpy bytes": lambda: numpy.array([b"a", b"bcd"]),
    "numpy void": lambda: numpy.zeros(3, "V5"),
    "numpy 0-dim": lambda: numpy.array(7),
    "numpy empty": lambda: [numpy.zeros(n) for n in ((0, 3), (3, 0), (2, 0, 5), (1000, 0))],
    "numpy scalars": lambda: [numpy.float32(1.5), numpy.datetime64("2020-01-01"), numpy.str_("a")],
    "numbers": lambda: [0, -1, 2**62, 2**63, -(2**100), 1.5, -0.0, math.nan, math.inf, 1j],
    "bools and None": lambda: [True, False, None],
    "text": lambda: ["", "x", "\u00e9\U0001f600", "\ud800", "a\0b"],
    "bytes": lambda: [b"", b"\0\xff", bytes(100_000)],
    "bytearray": lambda: bytearray(b"abc"),
    "namedtuple": lambda: Pair(torch.ones(2), "r"),
    "dataclass": lambda: Record(torch.ones(2)),
    "OrderedDict": lambda: collections.OrderedDict(b=1, a=torch.ones(1)),
    "defaultdict": lambda: collections.defaultdict(list, a=[torch.ones(1)]),
    "Counter": lambda: collections.Counter("abca"),
    "deque": lambda: collections.deque([torch.ones(1), 2], maxlen=3),
    "UserDict": lambda: collections.UserDict(a=torch.ones(1)),
    "UserList": lambda: collections.UserList([torch.ones(1)]),
    "custom Mapping": lambda: ReadOnly({"a": torch.ones(1)}),
    "dict that counts": counting,
    "list that logs": logging,
    "str subclass": word,
    "torch.Size": lambda: torch.Size([2, 3]),
    "range": lambda: range(2, 9, 3),
    "classes and functions": lambda: [int, Pair, torch.Tensor, len, math.sqrt, counting],
    "keys of many types": lambda: {1: 1, "a": 2, (1, "b"): 3, None: 4, 2.5: 5, b"x": 6, False: 7},
    "deep": lambda: nest(12),
    "ten thousand leaves": lambda: [torch.tensor([i]) for i in range(10_000)],
    "image": lambda: PIL.Image.new("RGB", (3, 2), (1, 2, 3)),
    "nothing": lambda: [[], {}, (), "", b"", None, collections.deque(), ()],
    "shared list": lambda: (lambda shared: [shared, shared])(cycle()),
}  # fmt: skip

PICKLED = {
    "dict of several values a key": several,
    "neg": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "sparse coo": lambda: torch.eye(3).to_sparse(),
    "parameter": lambda: with_an_attribute(torch.nn.Parameter(torch.ones(3))),
    "leaf of a graph": lambda: with_an_attribute(torch.ones(3, requires_grad=True)),
    "list whose items can be had once": lambda: [Lender(1, 2, torch.ones(1)), {3}],
    "subclass": named,
    "objects of objects": lambda: numpy.array([1, (2,), None], dtype=object),
    "enum": lambda: [Colour.RED, Level.HIGH],
    "set": lambda: {1, 2},
    "class": lambda: Node(value=[1, 2]),
    "dtype": lambda: [torch.float32, numpy.dtype("f4"), torch.device("cpu")],
    "bound method": lambda: [1, 2].index,
}
# torch's workers cannot send these, not on every machine (a descriptor for each tensor), or lose
# something on the way: what was made is the measure.
BETTER = {"neg", "subclass", "image", "bound method", "ten thousand leaves"}


def loader_of(loader_class, table):
    """Open a loader of the values of a table."""
    makes = list(table.values())
    dataset = Computed(len(makes), lambda index: makes[index]())
    return loader_class(dataset, None, num_workers=1, collate_fn=identity, timeout=30)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", [NATIVE, PICKLED], ids=["native", "pickled"])
def test_all_arrive_as_with_torch(table):
    """Every kind of leaf and container arrives equal to what torch's workers deliver, or better."""
    measure = {name: int if name in BETTER else make for name, make in table.items()}
    with loader_of(DataLoader, table) as loader:
        theirs = loader_of(torch.utils.data.DataLoader, measure)
        for name, expected, delivered in zip(table, theirs, loader, strict=True):
            assert are_same(table[name]() if name in BETTER else expected, delivered), name
        assert loader.stats().pickled_batches == (len(table) if table is PICKLED else 0)


def test_every_array_can_be_written_to():
    """Arrays and tensors are writable, even if the worker's were not."""
    delivered = deliver(DataLoader, read_only)
    delivered[0] = 9
    assert delivered.tolist() == [9, 1, 2, 3, 4]


# Nested batches of everything, through the encoder and the decoder in one process.


tensors = st.builds(
    lambda dtype, shape, step, flip: (
        lambda tensor: (
            (tensor[::step] if tensor.ndim else tensor).transpose(0, -1)
            if flip and tensor.ndim
            else tensor
        )
    )(torch.arange(math.prod(shape)).reshape(shape).to(dtype)),
    st.sampled_from(TENSOR_DTYPES),
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(1, 2),
    st.booleans(),
)
array_dtypes = st.one_of(
    numpy_strategies.scalar_dtypes(),
    numpy_strategies.array_dtypes(),
    numpy_strategies.byte_string_dtypes(min_len=1),
    numpy_strategies.unicode_string_dtypes(min_len=1),
).map(lambda dtype: dtype.newbyteorder("="))  # numpy's pickles, hence torch, swap to native
arrays = numpy_strategies.arrays(
    array_dtypes, numpy_strategies.array_shapes(min_dims=0, max_side=4)
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.binary(),
    st.text(st.characters(exclude_categories=())),
    st.sampled_from([Colour.RED, Level.HIGH, int, Pair]),
)  # fmt: skip
leaves = st.one_of(scalars, tensors, arrays, arrays.map(lambda array: array.T))
keys = st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers(), st.text(max_size=2)))


def containers(inner):
    """Containers of other batches: each that has a native form in the table."""
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(ReadOnly),
        st.dictionaries(keys, inner, max_size=3).map(collections.UserDict),
        st.builds(Pair, inner, inner),
        st.builds(Node, value=st.lists(scalars.filter(lambda value: value == value), max_size=3)),
        st.builds(lambda item: [item, item], inner),
        st.lists(inner, max_size=3).map(collections.deque),
    )


batches = st.recursive(leaves, containers, max_leaves=12)


@pytest.mark.thorough
def test_any_nested_batch_comes_back_equal():
    """Any combination of these comes back the same, and its slot is free afterwards."""
    forger = Forger(slots=200, ring_bytes=64 << 20)

    @settings(max_examples=300)
    @given(batches)
    def comes_back(batch):
        before = forger.ledger.counts()["leased"]
        forger.write(batch)
        delivered = forger.read()
        same = are_same(batch, delivered)
        del delivered
        assert same
        assert before == forger.ledger.counts()["leased"]

    comes_back()
    forger.close()
