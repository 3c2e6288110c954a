"""
No cliff: the programs of `make cliffs`, small and by counts: pages, objects, spills; and its rule.

`make cliffs` has their times and memory beside torch's.
"""

import io
import pickle
from functools import partial

import pytest
import torch

from bench.loads import wholes as loads
from bench.questions.cliffs import rule, uses
from shmloader import DataLoader

MB = 1_000_000
PAGES = 1 << 16  # what rounding to pages adds, and what the parts of a layout weigh

quiet = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")


def open_loader(load, **options):
    return DataLoader(load.dataset, **{"num_workers": 2, **load.arguments, **options})


# What a batch weighs.


class Sizer(pickle.Pickler):
    """A pickler that adds up storages, each once, in place of pickling tensors."""

    def __init__(self, file):
        super().__init__(file, 5)
        self.storages = {}

    def reducer_override(self, value):
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        storage = value.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return int, (0,)


def sent_by_torch(batch):
    """Return the bytes of a batch's pickle and of the storages that torch shares beside it."""
    file = io.BytesIO()
    sizer = Sizer(file)
    sizer.dump(batch)
    return file.tell() + sum(sizer.storages.values())


WEIGHED = {
    "columns": partial(loads.columns, 3, 1_024, 50),
    "vocabulary": partial(loads.vocabulary, 3),
    "same bytes": partial(loads.same, 3, bytes(100_000), 64),
    "same str": partial(loads.same, 3, "shared " * 3_000, 512),
    "object array": partial(loads.object_array, 3),
    "shared slices": partial(loads.shared_slices, 3, 100_000),
    "tensors": partial(loads.many_tensors, 3, 200),
    "arrays": partial(loads.many_arrays, 3, 2_000),
}


@quiet
@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", WEIGHED)
def test_a_slot_holds_little_more_than_torch_sends(name):
    """A batch fills as many pages as torch shares and pickles, whatever its leaves share."""
    load = WEIGHED[name]()
    with open_loader(load, num_workers=1, slots=1) as loader:
        assert 3 == sum(1 for _ in loader)

        assert loader.stats().resident_bytes <= 1.1 * sent_by_torch(load.dataset[2]) + 3 * PAGES


def distinct(batch):
    """Count the texts, bytes and dicts that a batch consists of, each object once."""
    seen, waiting = {}, [batch]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        waiting += [vars(part)] if hasattr(part, "__dict__") else []
        waiting += [*part, *part.values()] if isinstance(part, dict) else []
        waiting += part if isinstance(part, (list, tuple)) else []
    return sum(isinstance(part, (str, bytes, dict)) for part in seen.values())


SHARING = {
    "vocabulary": WEIGHED["vocabulary"],
    "same bytes": WEIGHED["same bytes"],
    "same str": WEIGHED["same str"],
    "class names": partial(loads.class_names, 3),
    "dict keys": partial(loads.literal_keys, 3),
    "nested dicts": partial(loads.nested_dicts, 3),
}


@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", SHARING)
def test_what_torch_delivers_once_is_one_object(name):
    """A kept batch has as many texts, bytes and dicts as what torch's pickle makes."""
    load = SHARING[name]()
    with open_loader(load, num_workers=1) as loader:
        kept = list(loader)

    for turn, batch in enumerate(kept):
        assert distinct(batch) <= distinct(pickle.loads(pickle.dumps(load.dataset[turn])))


# What is spilled.


@pytest.mark.thorough
@quiet
def test_children_that_are_forked_spill_nothing():
    """With the defaults no batch is copied that a child reads for a while."""
    with open_loader(loads.images(40, MB)) as loader:
        kept = uses.fork_children(loader)
        spilled = loader.stats().spilled
        del kept

    assert 0 == spilled


# The rule of the table.

RECORD = {
    "name": "a row", "mistakes": {}, "gives_back": False, "torch_ms": 10.0, "ours_ms": 14.0,
    "times_torch": 1.4, "torch_mb": 100.0, "ours_mb": 120.0, "torch_after_mb": 1.0,
    "ours_after_mb": 120.0, "most_time": rule.MOST_TIME,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({}, False),
        ({"ours_ms": 16.0, "times_torch": 1.6}, True),
        ({"most_time": rule.OF_OBJECTS}, True),
        ({"ours_ms": 0.3, "torch_ms": 0.15, "times_torch": 2.0}, False),
        ({"ours_mb": 140.0}, True),
        ({"ours_mb": 30.0, "torch_mb": 10.0, "ours_after_mb": 30.0}, False),
        ({"ours_after_mb": 140.0}, True),
        ({"gives_back": True}, True),
        ({"mistakes": {"ours": "its checksum is not torch's"}}, True),
        ({"torch_ms": None, "torch_mb": None, "torch_after_mb": None}, False),
    ],
)
def test_a_row_above_a_limit_fails(changed, fails):
    """Time, memory at the peak and after the epoch each have their limit and their slack."""
    assert fails == rule.fails({**RECORD, **changed})


def test_a_listed_row_may_be_above(monkeypatch):
    """A row with a reason passes above a limit, and is reported when it is below."""
    monkeypatch.setitem(rule.REASONS, "a row", "a reason")
    above = {**RECORD, "ours_mb": 500.0}

    assert (False, False) == (rule.fails(above), rule.fails(RECORD))
    assert "memory x 5" in rule.verdict(above)
    assert "take it off the list" in rule.verdict(RECORD)
