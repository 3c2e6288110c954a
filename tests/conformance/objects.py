"""Objects that refer to each other, and leaves of every kind inside of an object and beside it."""

import collections
import datetime
import functools
import itertools
from typing import Any

import numpy
import torch

from tests.conformance.made import Node, Pair, Record
from tests.helpers.leaves.parts import are_same
from tests.torch.test_kinds import NATIVE, PICKLED


class Ordered(collections.OrderedDict[Any, Any]):
    """A dict that travels as its parts."""


# What refers to what. Each takes no arguments.


def neighbours() -> Any:
    """Objects that refer to each other through their attributes."""
    nodes = [Node(number=number) for number in range(5)]
    for node in nodes:
        node.neighbours = [other for other in nodes if other is not node]
    return nodes


def vocabulary() -> Any:
    """Objects that refer to one list that stands nowhere else."""
    words = [f"word {number}" for number in range(50)]
    return [Node(words=words, number=number) for number in range(4)]


def overlapping_parameters() -> Any:
    """Two parameters of one storage, in two objects."""
    whole = torch.arange(6.0)
    return [Node(one=torch.nn.Parameter(whole[:4])), Node(two=torch.nn.Parameter(whole[2:]))]


def object_in_its_list() -> Any:
    """An object refers to the list in which it stands."""
    things = []
    things += [Node(things=things), Node(things=things)]
    return things


def object_in_its_dict() -> Any:
    """The same with dicts, one of a subclass."""
    things, more = {}, Ordered()
    things["a"] = Node(things=things, more=more)
    more["b"] = Node(things=things, more=more)
    return [things, more]


def namedtuple_in_itself() -> Any:
    """A namedtuple contains itself through a list."""
    inside = []
    pair = Pair(inside, torch.ones(2))
    inside.append(pair)
    return pair


def namedtuple_in_its_object() -> Any:
    """An object refers to the namedtuple in which it stands."""
    node = Node()
    node.pair = Pair(node, 1)
    return [node.pair, torch.ones(2)]


def tuple_in_itself() -> Any:
    """A tuple contains itself through a list."""
    inside = [torch.ones(1)]
    both = (inside, 2)
    inside.append(both)
    return both


def tuple_in_its_object() -> Any:
    """An object refers to the tuple in which it stands."""
    node = Node()
    node.both = (node, torch.ones(1))
    return node.both


def record_in_itself() -> Any:
    """A dataclass refers to itself, directly and through a list."""
    record = Record(torch.ones(2))
    record.other = [record, {"record": record}]
    return record


def object_in_itself() -> Any:
    """An object refers to itself."""
    node = Node()
    node.me = [node]
    return [node, node]


def many_levels() -> Any:
    """A list of 150 levels, whose innermost refers to the outermost and to a tensor in it."""
    tensor = torch.ones(1)
    outermost = innermost = [tensor]
    for _ in range(150):
        innermost.append([])
        innermost = innermost[-1]
    innermost += [tensor, outermost]
    return [outermost, innermost]


def tuple_of_many_levels() -> Any:
    """A tuple of 150 levels, whose innermost is also met on its own."""
    made = innermost = (torch.ones(1),)
    for _ in range(150):
        made = (made,)
    return [made, innermost, made]


def doubled() -> Any:
    """Tuples of tuples: 2 ** 40 ways lead to the one tensor."""
    made = (torch.ones(1),)
    for _ in range(40):
        made = (made, made)
    return made


def in_a_callable() -> Any:
    """A partial in an object and in a list, with the tensor that it is bound to."""
    tensor = torch.ones(2)
    call = functools.partial(torch.add, tensor)
    return [call, Node(call=call, tensor=tensor), tensor]


def structured() -> Any:
    """A structured scalar and an array of its type, each twice."""
    array = numpy.array([(1, 2.5), (3, 4.5)], dtype=[("n", "i4"), ("x", "f8")])
    scalar = array[1].copy()
    return [scalar, array, Node(scalar=scalar, array=array), scalar, array]


def classes() -> Any:
    """Names of classes, which stand in a list more often than there are classes."""
    return ["one class", "another", "one class", *["another"] * 5, "", "", "x", b"", b"x", b"x"]


def made_for_the_batch() -> Any:
    """Texts that are equal, and are as many objects as there are."""
    return [f"text {number % 2} of many" for number in range(6)] * 2


def literal_keys() -> Any:
    """Dictionaries of the same keys, which are values too."""
    rows = [{"the key": number, "of all": "the key", 7: b"seven"} for number in range(4)]
    return [*rows, "the key", collections.OrderedDict(rows[0]), Ordered(rows[1])]


def texts_beyond_ascii() -> Any:
    """Texts of every width that Python stores, and one that is no Unicode."""
    return ["äöü", "łąka", "\U0001f40d snake", "\udc80 alone"] * 2


def large_text_in_objects() -> Any:
    """A large text and large bytes, in containers before the objects and after them."""
    text, raw = "word " * 2000, bytes(10_000)
    first = [text, raw, Node(text=text, raw=raw), Node(text=[text])]
    other = "other " * 2000
    return [*first, Node(other=other), {"other": other}, Record(other, text)]


def short_text_in_objects() -> Any:
    """A short text, in containers and in objects."""
    text = "a short text"
    return [text, (text,), Node(text=text), Node(text=[text])]


def tuples_and_sets() -> Any:
    """Tuples and frozen sets that hold a text, each twice."""
    text = "the text of the tuple"
    both, items = (text, 1), frozenset(["the text of the set"])
    return [both, items, [both, items], {both: text, items: text}]


def texts_of_parts() -> Any:
    """Texts in what travels as its parts."""
    text, raw = "the text of all", b"the bytes of all"
    pair = Pair(text, raw)
    return [Record(text, raw), pair, Pair(raw, text), collections.deque([text, raw, pair])]


def names_of_attributes() -> Any:
    """The names of attributes, which Python keeps once for all objects."""
    return [vars(Record(1)), vars(Record(2)), Record(3), Record(4)]


REFERRING = [
    neighbours, vocabulary, overlapping_parameters, object_in_its_list, object_in_its_dict,
    namedtuple_in_itself, namedtuple_in_its_object, tuple_in_itself, tuple_in_its_object,
    record_in_itself, object_in_itself, many_levels, tuple_of_many_levels, doubled,
    in_a_callable, structured, classes, made_for_the_batch, literal_keys, texts_beyond_ascii,
    large_text_in_objects, short_text_in_objects, tuples_and_sets, texts_of_parts,
    names_of_attributes,
]  # fmt: skip


# Pairs of leaves, of which an object holds both.


class Claims:
    """An object that claims to be a class."""

    __class__ = property(lambda self: type)

    def __reduce__(self):
        return Claims, ()

    def __repr__(self):
        return "claims"


STRUCTURE = [("time", "i8"), ("energy", "f4")]
_OF_KINDS = (
    *("torch.int64", "transposed", "subclass", "sparse coo", "numpy text"),
    *("numpy structured", "objects of objects", "image", "str subclass", "bytearray"),
    *("namedtuple", "dataclass", "OrderedDict", "deque", "set", "enum", "class"),
)
LEAVES = {
    **{name: {**NATIVE, **PICKLED}[name] for name in _OF_KINDS},
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "meta": lambda: torch.empty(3, device="meta"),
    "storage": lambda: torch.arange(3).untyped_storage(),
    "array": lambda: numpy.arange(4),
    "array with metadata": lambda: numpy.ones(2, numpy.dtype("i4", metadata={"unit": "m"})),
    "array of nothing": lambda: numpy.zeros(3, []),
    "masked array": lambda: numpy.ma.masked_array([1, 2], [True, False]),
    "type": lambda: numpy.dtype(STRUCTURE),
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
    "object": lambda: Node(tensor=torch.ones(2), number=1),
    "partial": lambda: functools.partial(torch.add, torch.ones(1)),
    "a class": lambda: Claims,
    "function": lambda: len,
    "object with another class": Claims,
}
PAIRS = list(itertools.product(LEAVES, LEAVES))


def pair(inside: str, beside: str) -> list[Any]:
    """Make an object with one leaf in it and another one beside it and in it."""
    leaf, other = LEAVES[inside](), LEAVES[beside]()
    return [other, Node(inside=leaf, beside=other), leaf, getattr(leaf, "dtype", None)]


def is_whole(names: tuple[str, str], came: list[Any]) -> bool:
    """Returns True if this pair came, and if what is one object in it still is one."""
    beside, holder, leaf, dtype = came
    numbers = int, complex  # of which each is a new one, as in a pickle
    return (
        are_same(pair(*names), came)
        and (beside is holder.beside or isinstance(beside, numbers))
        and (leaf is holder.inside or isinstance(leaf, numbers))
        and (dtype is getattr(leaf, "dtype", None) or not getattr(dtype, "fields", None))
    )
