"""The pickle beside the tensors: refused as torch refuses it."""

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

import shmloader
from shmloader.core import pickling
from tests.conformance.made import Record


def dumps(value):
    """Pickle a value: the pickle, the storages that lay outside, by their numbers, and buffers."""
    storages, numbers = [], {}

    def reduce_storage(storage):
        if storage._cdata not in numbers:
            numbers[storage._cdata] = len(storages)
            storages.append(storage.clone())
        return pickling.leaf, (numbers[storage._cdata],)

    reducers = pickling.Reducers()
    reducers[torch.UntypedStorage] = reduce_storage
    pickled, buffers = pickling.dumps(value, reducers)
    return pickled, storages, [bytearray(buffer) for buffer in buffers]


def round_trip(value):
    """Pickle a value and build it again from copies of what lay outside."""
    pickled, storages, buffers = dumps(value)
    return pickling.loads(pickled, storages.__getitem__, buffers)


class Marked(torch.Tensor):
    """A subclass."""


def graph(kind):
    return (torch.ones(2, requires_grad=True) * 2).as_subclass(kind)


TRAINED = {
    "leaf": lambda: torch.ones(2, requires_grad=True),
    "leaf of a subclass": lambda: torch.ones(2).as_subclass(Marked).requires_grad_(),
    "leaf made one of a subclass": lambda: torch.ones(2, requires_grad=True).as_subclass(Marked),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "result": lambda: graph(torch.Tensor),
    "result of a subclass": lambda: graph(Marked),
    "view of a result": lambda: graph(torch.Tensor)[:1],
    "sparse result": lambda: graph(torch.Tensor).to_sparse(),
    "in an object": lambda: Record(graph(torch.Tensor)),
    "of a subclass in an object": lambda: Record(graph(Marked)),
}


def refuses(sends, value):
    try:
        sends(value)
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize("name", TRAINED)
def test_what_hangs_on_a_graph_is_refused_as_by_torch(monkeypatch, name):
    """Tensors that torch's queues refuse are an error with the cure in it; others arrive."""
    # So that nothing is shared for it.
    reducers = ForkingPickler._extra_reducers
    monkeypatch.setitem(reducers, torch.UntypedStorage, lambda storage: (bytes, ()))
    value = TRAINED[name]()
    if refuses(ForkingPickler.dumps, value):
        with pytest.raises(RuntimeError, match=r"call detach\(\) on it"):
            dumps(value)
    else:
        again = round_trip(value)
        values = [each.value if isinstance(each, Record) else each for each in (value, again)]
        assert [each.requires_grad for each in values] == [values[0].requires_grad] * 2
        assert type(values[0]) is type(values[1]) and torch.equal(*values)


def test_the_package_is_pickled_by_its_name():
    """cloudpickle (Ray, Dask, joblib) asks it, when a function uses `shmloader`."""
    assert pickle.loads(pickle.dumps(shmloader)) is shmloader
