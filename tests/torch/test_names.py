"""Classes, functions and types of arrays are those that the trainer's modules hold by then."""

import functools
import gc
import sys
import weakref

import numpy
import pytest
import torch
import torch.utils.data

from shmloader import DataLoader
from tests.conformance.made import Node
from tests.helpers.datasets import Computed, deliver, identity
from tests.helpers.forgery import Forger
from tests.helpers.stage import run_file

MODULE = """
import collections
import dataclasses
import enum

VERSION = {version}


class Pair(collections.namedtuple("Pair", "left right")):
    version = VERSION


@dataclasses.dataclass
class Record:
    value: int = 1

    def version_of(self):
        return VERSION


class Plain:
    version = VERSION


class Colour(enum.Enum):
    RED = VERSION


class Ordered(collections.OrderedDict):
    version = VERSION


def function():
    return VERSION
"""
PROGRAM = """
import importlib, sys

# A file that is written again in the same second would be taken for the one that was compiled.
sys.dont_write_bytecode = True

import torch.utils.data
import shmloader
import cells

MODULE = {module!r}


class Cells(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        import cells
        objects = [cells.Pair(1, 2), cells.Record(), cells.Plain(), cells.Ordered(a=1)]
        return objects, [cells.Pair, cells.function, cells.Colour]


def identity(samples):
    return samples


def look(batch):
    objects, (pair, function, colour) = batch
    kinds = [cells.Pair, cells.Record, cells.Plain, cells.Ordered]
    same = [type(value) is kind for value, kind in zip(objects, kinds)]
    same += [pair is cells.Pair, function is cells.function, colour is cells.Colour]
    versions = [value.version for value in (objects[0], objects[2], objects[3])]
    return same, versions + [objects[1].version_of(), function(), colour.RED.value]


def show(loader_class):
    # A cell is run, a loader is used, the cell is run again: between epochs and in one.
    loader = loader_class(
        Cells(), batch_size=None, num_workers=1, collate_fn=identity, prefetch_factor=1,
        multiprocessing_context={method!r}, persistent_workers=True,
    )
    print(look(next(iter(loader))))
    for version in (2, 3):
        with open("cells.py", "w") as file:
            file.write(MODULE.replace("{{version}}", str(version)))
        importlib.invalidate_caches()
        importlib.reload(cells)
        print([look(batch) for batch in loader])
    batches = iter(loader)
    next(batches)
    with open("cells.py", "w") as file:
        file.write(MODULE.replace("{{version}}", "1"))
    importlib.reload(cells)
    print([look(batch) for batch in batches])


if __name__ == "__main__":
    show({loader})
"""


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_class_that_is_defined_again_arrives_as_the_new_one(libraries, tmp_path, method):
    """A class or function defined again is found by its name in each batch, as with torch."""
    shown = []
    for loader in ("torch.utils.data.DataLoader", "shmloader.DataLoader"):
        folder = tmp_path / loader
        folder.mkdir()
        (folder / "cells.py").write_text(MODULE.replace("{version}", "1"))
        program = PROGRAM.format(module=MODULE, method=method, loader=loader)
        status, lines, errors = run_file(libraries, folder, program)
        assert (0, "") == (status, errors)
        shown.append(lines)

    assert shown[0] == shown[1]
    assert "False" not in "".join(shown[1])


ALIVE = weakref.WeakSet()


class Watched(functools.partial):
    """A partial that is counted while it lives."""

    def __new__(cls, *arguments):
        made = super().__new__(cls, *arguments)
        ALIVE.add(made)
        return made


class Called:
    """A class whose objects are built by a new callable each."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return Watched(rebuild, torch.full((1 << 16,), float(self.value))), (self.value,)


class Listed(Called, list):
    """The same for a type that travels as its parts."""


def rebuild(tensor, value):
    return [tensor[0].item(), value]


@pytest.mark.parametrize("kind", [Called, Listed])
def test_callables_of_reductions_are_not_kept(kind):
    """What __reduce__ returns goes with its batch, at both ends, with the tensors bound to it."""
    forger = Forger()
    for number in range(20):
        forger.write(kind(number))
        assert [number, number] == forger.read()
    gc.collect()
    alive = len(ALIVE)
    forger.close()

    assert 0 == alive


@pytest.mark.thorough
def test_a_lookup_that_fails_is_the_error_of_a_pickle():
    """A class that the trainer does not have raises what torch raises."""
    module = sys.modules[__name__]
    texts = []
    for loader_class in (torch.utils.data.DataLoader, DataLoader):
        batches = iter(
            loader_class(
                Computed(1, make_late), batch_size=None, num_workers=1, collate_fn=identity
            )
        )
        with pytest.raises(AttributeError) as raised:
            next(batches)
        texts.append(str(raised.value))
        del batches
    assert not hasattr(module, "Late")
    assert "Late" in texts[1]


def make_late(index):
    """Define a class in the worker alone."""
    late = type("Late", (list,), {"__module__": __name__})
    sys.modules[__name__].Late = late
    return late([1])


# Types of arrays

COUNTED = [numpy.dtype("i4", metadata={"n": number}) for number in range(2)]
ALIGNED = [numpy.dtype([("a", "u1"), ("b", "f8")], align=align) for align in (False, True)]
TYPES = {
    "numbers with metadata": COUNTED,
    "records with metadata": [
        numpy.dtype([("a", dtype)], metadata={"m": number}) for number, dtype in enumerate(COUNTED)
    ],
    "texts with metadata": [numpy.dtype("U3", metadata={"n": number}) for number in range(2)],
    "aligned and not": ALIGNED,
    "records of other names, titles and classes": [
        numpy.dtype([("a", "u1"), ("b", "f8")]),
        numpy.dtype([("a", "u1"), ("c", "f8")]),
        numpy.dtype([(("title", "a"), "u1"), ("c", "f8")]),
        numpy.dtype((numpy.record, [("a", "u1"), ("c", "f8")])),
        numpy.dtype([("a", "u1"), ("c", [("x", "f8")])]),
        numpy.dtype([("a", "u1"), ("c", "f8", (1,))]),
    ],
    "times": [numpy.dtype("M8[D]"), numpy.dtype("M8[25s]"), numpy.dtype("m8")],
    "texts": [numpy.dtype("U0"), numpy.dtype("S0"), numpy.dtype("U5"), numpy.dtype("V3")],
    "big-endian": [numpy.dtype(">i4"), numpy.dtype(">U2"), numpy.dtype(">M8[D]")],
    "half": [numpy.dtype("f2"), numpy.dtype(">f2")],
}
SWAPPED = [numpy.arange(12).reshape(3, 4).astype(type_) for type_ in (">i4", ">f8", ">M8[D]", ">g")]


def facts(array):
    """List what is to be known of an array's type, and its values."""
    dtype = array.dtype
    inner = [dtype[name].metadata for name in dtype.names or ()]
    return (
        type(array), dtype.type, dtype.str, dtype.descr, dtype.metadata and dict(dtype.metadata),
        dtype.itemsize, dtype.isalignedstruct, inner, array.tobytes(), array.flags.writeable,
    )  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_types_of_arrays_are_as_with_torch(name):
    """An array keeps its type's metadata and alignment, and never gets those of another array."""

    def make():
        arrays = [numpy.zeros(2, dtype) for dtype in TYPES[name]]
        return arrays + [numpy.zeros(2, dtype) for dtype in reversed(TYPES[name])]

    expected = deliver(torch.utils.data.DataLoader, make)
    delivered = deliver(DataLoader, make)

    assert list(map(facts, expected)) == list(map(facts, delivered))


@pytest.mark.parametrize("is_pickled", [False, True], ids=["leaves", "pickle"])
def test_byte_orders_are_as_with_torch(is_pickled):
    """What numpy's pickle keeps of another byte order depends on Python, layout, type and class."""

    def make():
        found = []
        for array in SWAPPED:
            named = array.view(numpy.recarray)
            found += [array, array.T, array[::2, ::2], named, numpy.ma.array(array)]
        return {"arrays": found, "more": Node() if is_pickled else None}

    expected = deliver(torch.utils.data.DataLoader, make)["arrays"]
    delivered = deliver(DataLoader, make)["arrays"]

    assert list(map(facts, expected)) == list(map(facts, delivered))


def test_a_type_that_is_changed_in_the_trainer_stays_as_it_was_elsewhere():
    """Names given to the fields of one batch's array are not those of the next batch's."""

    def make(index):
        return numpy.zeros(1, [("a", "i4")])

    loader = DataLoader(Computed(3, make), batch_size=None, num_workers=1, collate_fn=identity)
    for array in loader:
        assert ("a",) == array.dtype.names
        array.dtype.names = ("b",)
