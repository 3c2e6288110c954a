"""The pickle beside the tensors: large parts outside of it, aliases kept, bad leaves named."""

import collections
import dataclasses
import pickle

import numpy
import pytest
import torch

from shmloader.core import pickling, unsendable


class Layout:
    """Gives numbers to the storages of a batch, as a slot's encoder does, and keeps copies."""

    def __init__(self):
        self.storages = []
        self._numbers = {}

    def number_of(self, value):
        if type(value) is not torch.UntypedStorage or value.device.type != "cpu":
            return None
        if value._cdata not in self._numbers:
            self._numbers[value._cdata] = len(self.storages)
            self.storages.append(value.clone())
        return self._numbers[value._cdata]

    def object_of(self, number):
        return self.storages[number]


def dumps(value):
    """Pickle a value: the pickle, and what lay outside."""
    layout = Layout()
    pickled, buffers = pickling.Pickler(layout.number_of).take(value)
    return pickled, layout, [bytearray(buffer) for buffer in buffers]


def round_trip(value):
    """Pickle a value and build it again from copies of what lay outside."""
    pickled, layout, buffers = dumps(value)
    return pickling.Unpickler(layout.object_of).give(pickled, buffers)


def test_large_parts_lie_outside():
    """The pickle of a large tensor and a large array is small: their bytes are beside it."""
    value = [torch.zeros(100_000), numpy.zeros(100_000)]
    pickled, layout, buffers = dumps(value)

    assert [400_000] == [storage.nbytes() for storage in layout.storages]
    assert [800_000] == [len(buffer) for buffer in buffers]
    assert len(pickled) < 2_000


def test_views_share_one_storage():
    """A storage lies outside once, and the loaded objects share it as the originals did."""
    whole = torch.arange(10)
    _, layout, _ = dumps([whole, whole[2:4], whole])
    first, second, third = round_trip([whole, whole[2:4], whole])
    first[2] = 99

    assert (1, 99, 99) == (len(layout.storages), second[0].item(), third[2].item())


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).view(2, 3).t(),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.tensor(1 + 2j),
        torch.empty(0),
        numpy.asfortranarray(numpy.ones((2, 3))),
        {"text": [1, None, b"bytes", 2.5]},
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_values_come_back(value):
    """A value comes back equal, with its type, strides and gradient flag."""
    again = round_trip(value)

    assert (type(value), str(value)) == (type(again), str(again))
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        assert (value.stride(), value.requires_grad) == (again.stride(), again.requires_grad)


def test_non_leaf_is_refused():
    """A tensor that hangs on a graph is torch's error, with the cure in it."""
    with pytest.raises(RuntimeError, match=r"call detach\(\) on it"):
        dumps(torch.ones(1, requires_grad=True) * 2)


Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    """A record with two fields."""

    good: object = 1
    bad: object = None


BAD = type("Local", (), {})()  # its class is found under no name


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        (BAD, "batch"),
        ([1, BAD], "batch[1]"),
        ({"x": {3: BAD}}, "batch['x'][3]"),
        (Pair(1, (2, BAD)), "batch[1][1]"),
        ([Record(bad=BAD)], "batch[0].bad"),
    ],
    ids=["leaf", "list", "dicts", "namedtuple", "dataclass"],
)
def test_unsendable_leaf_is_found(batch, path):
    """The first leaf that cannot be pickled is found by the path that Python would write."""
    assert (path, BAD) == unsendable.find_unsendable(batch)


def test_sendable_batches_have_no_culprit():
    """A batch that can be pickled has no unsendable leaf, whatever it consists of."""
    assert (
        unsendable.find_unsendable({"a": [1, "text", b"", Record(), {"b": torch.ones(1)}]}) is None
    )


def test_truncated_pickle_is_an_error():
    """A pickle that was cut off is not taken for a value."""
    pickled, layout, buffers = dumps({"a": 1})

    with pytest.raises((pickle.UnpicklingError, EOFError)):
        pickling.Unpickler(layout.object_of).give(pickled[:-3], buffers)


def test_objects_of_one_batch_share():
    """Objects that are pickled one after the other keep what they share, and it is sent once."""
    layout = Layout()
    pickler, unpickler = (
        pickling.Pickler(layout.number_of),
        pickling.Unpickler(layout.object_of),
    )
    words = [f"word {number}" for number in range(1000)]
    arrays = [numpy.arange(3), numpy.arange(4)]
    values = [Record(words, arrays[0]), Record(words, arrays[1]), words]
    sent = [pickler.take(value) for value in values]

    first, second, last = (unpickler.give(*each) for each in sent)

    assert first.good is second.good is last
    assert [[0, 1, 2], [0, 1, 2, 3]] == [first.bad.tolist(), second.bad.tolist()]
    assert all(len(pickled) < 200 for pickled, _ in sent[1:])


def test_an_unsendable_leaf_of_a_cycle_is_found():
    """A batch that contains itself is searched once."""
    batch = [1, {}]
    batch[1]["back"] = batch
    batch[1]["bad"] = BAD

    assert ("batch[1]['bad']", BAD) == unsendable.find_unsendable(batch)
