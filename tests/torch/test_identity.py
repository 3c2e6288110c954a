"""What is one object in a worker's batch is one in the trainer's, as if one pickle held it all."""

import collections
import dataclasses
import functools
import types

import numpy
import pytest
import torch
import torch.utils.data

from shmloader import DataLoader
from tests.conformance.made import Node
from tests.helpers.datasets import Computed, identity

pytestmark = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")

Pair = collections.namedtuple("Pair", "left right")
ATOMS = (int, float, bool, complex, types.NoneType, type, types.FunctionType)


class Ordered(collections.OrderedDict):
    """A dict that travels as its parts."""


@dataclasses.dataclass
class Record:
    """Another object that travels as its parts."""

    value: object
    other: object = None


def deliver(loader_class, make):
    dataset = Computed(1, lambda index: make())
    loader = loader_class(dataset, batch_size=None, num_workers=1, collate_fn=identity, timeout=30)
    (batch,) = loader
    return batch


def picture(value, seen):
    """
    Draw a batch so that two are drawn alike only if they share alike.

    An object is drawn where it is met first, and after that by its turn.
    """
    if isinstance(value, ATOMS):
        return value
    if id(value) in seen:
        return f"object {seen[id(value)][0]}"
    seen[id(value)] = len(seen), value
    if isinstance(value, str | bytes):
        return [value]
    return type(value).__name__, [picture(part, seen) for part in parts_of(value)]


def parts_of(value):
    if isinstance(value, torch.Tensor | numpy.ndarray | numpy.generic):
        return [value.tolist()]
    if isinstance(value, dict):
        return [*value.keys(), *value.values(), vars_of(value)]
    if isinstance(value, list | tuple | frozenset | collections.deque):
        return [*value, vars_of(value)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args]
    return [vars_of(value)]


def vars_of(value):
    # Not the dictionary itself: some have one, whatever it holds, and it is an object too.
    return None if not hasattr(value, "__dict__") else tuple(vars(value).items())


# Batches. Each takes no arguments.


def neighbours():
    """Objects that refer to each other through their attributes."""
    nodes = [Node(number=number) for number in range(5)]
    for node in nodes:
        node.neighbours = [other for other in nodes if other is not node]
    return nodes


def vocabulary():
    """Objects that refer to one list that stands nowhere else."""
    words = [f"word {number}" for number in range(50)]
    return [Node(words=words, number=number) for number in range(4)]


def overlapping_parameters():
    """Two parameters of one storage, in two objects."""
    whole = torch.arange(6.0)
    return [Node(one=torch.nn.Parameter(whole[:4])), Node(two=torch.nn.Parameter(whole[2:]))]


def object_in_its_list():
    """An object refers to the list in which it stands."""
    things = []
    things += [Node(things=things), Node(things=things)]
    return things


def object_in_its_dict():
    """The same with dicts, one of a subclass."""
    things, more = {}, Ordered()
    things["a"] = Node(things=things, more=more)
    more["b"] = Node(things=things, more=more)
    return [things, more]


def namedtuple_in_itself():
    """A namedtuple contains itself through a list."""
    inside = []
    pair = Pair(inside, torch.ones(2))
    inside.append(pair)
    return pair


def namedtuple_in_its_object():
    """An object refers to the namedtuple in which it stands."""
    node = Node()
    node.pair = Pair(node, 1)
    return [node.pair, torch.ones(2)]


def tuple_in_itself():
    """A tuple contains itself through a list."""
    inside = [torch.ones(1)]
    both = (inside, 2)
    inside.append(both)
    return both


def tuple_in_its_object():
    """An object refers to the tuple in which it stands."""
    node = Node()
    node.both = (node, torch.ones(1))
    return node.both


def record_in_itself():
    """A dataclass refers to itself, directly and through a list."""
    record = Record(torch.ones(2))
    record.other = [record, {"record": record}]
    return record


def object_in_itself():
    """An object refers to itself."""
    node = Node()
    node.me = [node]
    return [node, node]


def many_levels():
    """A list of 150 levels, whose innermost refers to the outermost and to a tensor in it."""
    tensor = torch.ones(1)
    outermost = innermost = [tensor]
    for _ in range(150):
        innermost.append([])
        innermost = innermost[-1]
    innermost += [tensor, outermost]
    return [outermost, innermost]


def tuple_of_many_levels():
    """A tuple of 150 levels, whose innermost is also met on its own."""
    made = innermost = (torch.ones(1),)
    for _ in range(150):
        made = (made,)
    return [made, innermost, made]


def doubled():
    """Tuples of tuples: 2 ** 40 ways lead to the one tensor."""
    made = (torch.ones(1),)
    for _ in range(40):
        made = (made, made)
    return made


def in_a_callable():
    """A partial in an object and in a list, with the tensor that it is bound to."""
    tensor = torch.ones(2)
    call = functools.partial(torch.add, tensor)
    return [call, Node(call=call, tensor=tensor), tensor]


def structured():
    """A structured scalar and an array of its type, each twice."""
    array = numpy.array([(1, 2.5), (3, 4.5)], dtype=[("n", "i4"), ("x", "f8")])
    scalar = array[1].copy()
    return [scalar, array, Node(scalar=scalar, array=array), scalar, array]


def classes():
    """Names of classes, which stand in a list more often than there are classes."""
    return ["one class", "another", "one class", *["another"] * 5, "", "", "x", b"", b"x", b"x"]


def made_for_the_batch():
    """Texts that are equal, and are as many objects as there are."""
    return [f"text {number % 2} of many" for number in range(6)] * 2


def literal_keys():
    """Dictionaries of the same keys, which are values too."""
    rows = [{"the key": number, "of all": "the key", 7: b"seven"} for number in range(4)]
    return [*rows, "the key", collections.OrderedDict(rows[0]), Ordered(rows[1])]


def texts_beyond_ascii():
    """Texts of every width that Python stores, and one that is no Unicode."""
    return ["äöü", "łąka", "\U0001f40d snake", "\udc80 alone"] * 2


def large_text_in_objects():
    """A large text and large bytes, in containers before the objects and after them."""
    text, raw = "word " * 2000, bytes(10_000)
    first = [text, raw, Node(text=text, raw=raw), Node(text=[text])]
    other = "other " * 2000
    return [*first, Node(other=other), {"other": other}, Record(other, text)]


def short_text_in_objects():
    """A short text, in containers and in objects."""
    text = "a short text"
    return [text, (text,), Node(text=text), Node(text=[text])]


def tuples_and_sets():
    """Tuples and frozen sets that hold a text, each twice."""
    text = "the text of the tuple"
    both, items = (text, 1), frozenset(["the text of the set"])
    return [both, items, [both, items], {both: text, items: text}]


def texts_of_parts():
    """Texts in what travels as its parts."""
    text, raw = "the text of all", b"the bytes of all"
    pair = Pair(text, raw)
    return [Record(text, raw), pair, Pair(raw, text), collections.deque([text, raw, pair])]


def names_of_attributes():
    """The names of attributes, which Python keeps once for all objects."""
    return [vars(Record(1)), vars(Record(2)), Record(3), Record(4)]


BATCHES = {
    make.__name__.replace("_", " "): make
    for make in (
        neighbours, vocabulary, overlapping_parameters, object_in_its_list, object_in_its_dict,
        namedtuple_in_itself, namedtuple_in_its_object, tuple_in_itself, tuple_in_its_object,
        record_in_itself, object_in_itself, many_levels, tuple_of_many_levels, doubled,
        in_a_callable, structured, classes, made_for_the_batch, literal_keys, texts_beyond_ascii,
        large_text_in_objects, short_text_in_objects, tuples_and_sets, texts_of_parts,
        names_of_attributes,
    )
}  # fmt: skip


@pytest.mark.core(every=2)
@pytest.mark.parametrize("name", BATCHES)
def test_objects_share_as_with_torch(name):
    """Objects that refer to each other, in any order and cycle, and texts, arrive as with torch."""
    expected = deliver(torch.utils.data.DataLoader, BATCHES[name])
    delivered = deliver(DataLoader, BATCHES[name])

    assert picture(expected, {}) == picture(delivered, {})
