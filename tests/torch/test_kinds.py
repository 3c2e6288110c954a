"""
Invariant 7 and the table of kinds: all that torch delivers arrives equal, natively or as a pickle.
"""

import collections
import dataclasses
import enum
import functools
import math
import warnings
from collections.abc import Mapping

import numpy
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from shmloader import DataLoader
from shmloader.core import Figures, Kind, Order, Verb
from shmloader.memory.segment import Segment, first_shape
from tests.helpers.datasets import Computed

# Comparing: exact values and types, however deep.


def assert_same(expected, actual):
    """Two batches have the same structure, types, dtypes, shapes and bits."""
    assert type(expected) is type(actual)
    if isinstance(expected, torch.Tensor):
        assert_same_tensor(expected, actual)
    elif isinstance(expected, numpy.ndarray | numpy.generic):
        assert_same_array(expected, actual)
    elif isinstance(expected, Mapping):
        assert list(expected) == list(actual)
        for key in expected:
            assert_same(expected[key], actual[key])
    elif isinstance(expected, list | tuple | collections.deque | collections.UserList):
        assert len(expected) == len(actual)
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)
    elif dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        for field in dataclasses.fields(expected):
            assert_same(getattr(expected, field.name), getattr(actual, field.name))
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(actual)
    else:
        assert expected == actual or (expected != expected and actual != actual)
    assert_same_attributes(expected, actual)


def assert_same_attributes(expected, actual):
    if isinstance(expected, torch.Tensor | numpy.ndarray | type) or callable(expected):
        return
    assert_same_items(getattr(expected, "__dict__", {}), getattr(actual, "__dict__", {}))


def assert_same_items(expected, actual):
    assert list(expected) == list(actual)
    for key, value in expected.items():
        assert_same(value, actual[key])


def assert_same_tensor(expected, actual):
    assert expected.dtype == actual.dtype
    assert expected.layout == actual.layout
    assert expected.requires_grad == actual.requires_grad
    if expected.is_nested or expected.is_quantized or expected.layout != torch.strided:
        assert str(expected) == str(actual)
        return
    assert expected.shape == actual.shape
    raw = [bits(expected), bits(actual)]
    assert raw[0].equal(raw[1])


def bits(tensor):
    """A tensor's elements in order, as (n,) uint8."""
    values = torch.empty(tensor.shape, dtype=tensor.dtype)
    return values.copy_(tensor.detach()).view(-1).view(torch.uint8)


def assert_same_array(expected, actual):
    assert expected.dtype == actual.dtype
    assert expected.shape == actual.shape
    if expected.dtype.hasobject:
        assert expected.tolist() == actual.tolist()
    elif expected.dtype.char in "gG":
        # Ten of its sixteen bytes are the number.
        assert repr(expected) == repr(actual)
    else:
        assert expected.tobytes() == actual.tobytes()


# The table. Each entry makes one batch; `pickled` is True if a part of it travels as a pickle.


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    """A plain dataclass."""

    x: torch.Tensor
    name: str = "p"


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    """A frozen one with slots."""

    x: torch.Tensor
    y: int


Pair = collections.namedtuple("Pair", ["left", "right"])


class Plain:
    """An arbitrary class."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Plain and self.value == other.value

    __hash__ = None


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


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.quint8)


def read_only():
    array = numpy.arange(5)
    array.flags.writeable = False
    return array


def same_twice():
    one = torch.arange(5)
    return [one, one, {"again": one}]


def structured():
    return numpy.array([(1, 2.5, b"ab")], dtype=[("n", "<i4"), ("x", ">f8"), ("s", "S3")])


def packed():
    return torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])


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
    "numpy fortran": lambda: numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
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
    "numpy empty": lambda: numpy.empty((0, 2)),
    "numpy scalars": lambda: [numpy.float32(1.5), numpy.datetime64("2020-01-01"), numpy.str_("a")],
    "numbers": lambda: [0, -1, 2**62, 2**63, -(2**100), 1.5, -0.0, math.nan, math.inf, 1j],
    "bools and None": lambda: [True, False, None],
    "text": lambda: ["", "x", "\u00e9\U0001f600", "\ud800", "a\0b"],
    "bytes": lambda: [b"", b"\0\xff", bytes(100_000)],
    "bytearray": lambda: bytearray(b"abc"),
    "namedtuple": lambda: Pair(torch.ones(2), "r"),
    "dataclass": lambda: Point(torch.ones(2)),
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
    "matrix": lambda: (
        numpy.ma.masked_array([1, 2], [True, False]).filled(5).view(numpy.matrix)
    ),
    "image": lambda: PIL.Image.new("RGB", (3, 2), (1, 2, 3)),
    "shared list": lambda: (lambda shared: [shared, shared])(cycle()),
}  # fmt: skip

PICKLED = {
    "PackedSequence": packed,
    "conj": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "neg": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "sparse coo": lambda: torch.eye(3).to_sparse(),
    "sparse csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantised": quantised,
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "requires_grad": lambda: torch.ones(3, requires_grad=True),
    "subclass": named,
    "objects of objects": lambda: numpy.array([1, (2,), None], dtype=object),
    "enum": lambda: [Colour.RED, Level.HIGH],
    "set": lambda: {1, 2},
    "class": lambda: Plain([1, 2]),
    "dtype": lambda: [torch.float32, numpy.dtype("f4"), torch.device("cpu")],
    "bound method": lambda: [1, 2].index,
}
# torch's workers cannot send these, not on every machine (a descriptor for each tensor), or lose
# something on the way: what was made is the measure.
BETTER = {
    "conj", "neg", "nested", "quantised", "subclass", "image", "bound method",
    "ten thousand leaves",
}  # fmt: skip


def identity(value):
    return value


def deliver_all(loader_class, makers):
    dataset = Computed(len(makers), lambda index: makers[index]())
    loader = loader_class(dataset, batch_size=None, num_workers=1, collate_fn=identity, timeout=30)
    return loader, list(loader)


def expected_of(name, make):
    if name in BETTER:
        return make()
    return deliver_all(torch.utils.data.DataLoader, [make])[1][0]


@pytest.mark.core(every=3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*NATIVE, *PICKLED])
def test_arrives_as_with_torch(name):
    """Every kind of leaf and container arrives equal to what torch's workers deliver, or better."""
    make = {**NATIVE, **PICKLED}[name]
    expected = expected_of(name, make)
    loader, (delivered,) = deliver_all(DataLoader, [make])
    if isinstance(expected, PIL.Image.Image):
        assert expected.tobytes() == delivered.tobytes()
    elif name == "bound method":
        assert delivered(2) == 1
    else:
        assert_same(expected, delivered)
    assert loader.stats().pickled_batches == (name in PICKLED)
    loader.close()


def test_a_subclass_keeps_its_attributes():
    """A tensor of a subclass arrives as that subclass, with what was set on it."""
    loader, (delivered,) = deliver_all(DataLoader, [named])
    assert type(delivered) is Named
    assert delivered.label == "four"
    loader.close()


@pytest.mark.parametrize("what", ["tensors", "arrays"])
def test_views_of_one_storage_stay_aliases(what):
    """Leaves that overlap in memory, or are one object, still do and are in the trainer."""

    def make():
        base = torch.arange(10)
        base = base if what == "tensors" else base.numpy()
        return {"all": base, "part": base[4:8], "again": base}

    loader, (delivered,) = deliver_all(DataLoader, [make])
    assert delivered["again"] is delivered["all"]
    delivered["all"][5] = 77
    assert delivered["part"].tolist() == [4, 77, 6, 7]
    loader.close()


def test_every_array_can_be_written_to():
    """Arrays and tensors are writable, even if the worker's were not."""
    loader, (delivered,) = deliver_all(DataLoader, [read_only])
    delivered[0] = 9
    assert delivered.tolist() == [9, 1, 2, 3, 4]
    loader.close()


# Nested batches of everything, through the encoder and the decoder in one process.


class Direct:
    """A ledger and a desk of one segment in one process: `send` is a batch's whole way."""

    def __init__(self):
        self.segment = Segment(first_shape(1, 200, 64 << 20))
        self.desk = self.segment.handle().sit_down(0)
        self.ticket = 0

    def send(self, batch):
        """Write a batch into a slot and read it out again."""
        ledger = self.segment.ledger
        assert ledger.place(0, self.ticket, [self.ticket])
        self.ticket += 1
        assert self.desk.take(1.0) == (Order.PLACE, [self.ticket - 1])
        self.desk.write(batch, False)
        self.desk.commit()
        news = ledger.receive()
        assert (news.verb, news.kind) == (Verb.READY, Kind.BATCH)
        return ledger.deliver(news.slot, False)

    def counts(self):
        return Figures(self.segment.ledger).counts()


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
    st.integers(1, 3),
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
        st.builds(Plain, st.lists(scalars.filter(lambda value: value == value), max_size=3)),
        st.builds(lambda item: [item, item], inner),
        st.lists(inner, max_size=3).map(collections.deque),
    )


batches = st.recursive(leaves, containers, max_leaves=12)


@pytest.fixture(scope="module")
def direct():
    """For the whole module, because a worker's mapping lasts as long as its process."""
    return Direct()


def test_any_nested_batch_comes_back_equal(direct):
    """Any combination of these comes back the same, and its slot is free afterwards."""

    @settings(max_examples=300)
    @given(batches)
    def comes_back(batch):
        before = direct.counts()["leased"]
        delivered = direct.send(batch)
        try:
            assert_same(batch, delivered)
        finally:
            del delivered
        assert direct.counts()["leased"] == before

    comes_back()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 5), (1000, 0)])
def test_array_of_no_elements_has_its_shape(shape):
    """Whichever dimension is 0, and though the batch has no bytes at all."""
    dataset = [numpy.zeros(shape)]
    with DataLoader(dataset, batch_size=1, collate_fn=list, num_workers=1) as loader:
        assert [shape] == [array.shape for batch in loader for array in batch]
