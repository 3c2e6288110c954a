"""The public face: options and their errors, closing, iterating in every way, counters, wrap()."""

import functools
import gc
import weakref

import numpy
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate

import shmloader
from shmloader import DataLoader
from tests.helpers.datasets import Computed, identity
from tests.helpers.segments import in_slots

TWO = {"num_workers": 2, "multiprocessing_context": "fork"}
COUNT = 12
PAIRS = [[index, index + 1] for index in range(0, COUNT, 2)]


def numbers(kind=Computed):
    """Twelve numbers, each as a row of eight."""
    return kind(COUNT, functools.partial(torch.full, (8,)))


class EmptyRows(Computed):
    """Whole batches in memory of the slot, filled in place."""

    def __getitems__(self, indices):
        rows = shmloader.empty((len(indices), 8), dtype=torch.int64)
        rows[:] = torch.tensor(indices).reshape(-1, 1)
        return rows


def collate_and_tell(samples):
    """Collate, and add True to the batch if it was collated into shared memory."""
    batch = default_collate(samples)
    return batch, in_slots([batch])[0]


def collate_into_empty(samples):
    """Fill memory of the slot by hand."""
    batch = shmloader.empty((len(samples), 8), torch.int64)
    torch.stack(samples, out=batch)
    return batch, in_slots([batch])[0]


def firsts(loader):
    """Return the first column of each batch."""
    return [batch[:, 0].tolist() for batch in loader]


# Options


@pytest.mark.parametrize("integer", [numpy.int64, numpy.uint8, numpy.int32])
def test_integers_of_numpy_are_integers(integer):
    """Options take numpy's integers, as torch's own do, and are read back as Python's."""
    options = {"slots": 7, "slot_bytes": 100, "restarts": 2}
    given = {name: integer(value) for name, value in options.items()}

    loader = DataLoader(numbers(), num_workers=integer(2), batch_size=2, **given)

    assert options == {name: getattr(loader, name) for name in options}
    assert {int} == {type(getattr(loader, name)) for name in options}
    assert PAIRS == firsts(loader)


# Memory of the slot


@pytest.mark.parametrize("collate_fn", [collate_and_tell, collate_into_empty])
def test_what_a_collate_fn_makes_lies_in_the_slot(collate_fn):
    """By default_collate, or by hand in shmloader.empty(): nothing copies it again."""
    with DataLoader(numbers(), batch_size=2, collate_fn=collate_fn, **TWO) as loader:
        batches = list(loader)

    assert [True] * 6 == [in_slot for _, in_slot in batches]
    assert PAIRS == firsts(batch for batch, _ in batches)


def test_empty_in_a_dataset():
    """A dataset may fill a whole batch in the slot, with a collate function that passes it on."""
    with DataLoader(numbers(EmptyRows), batch_size=2, collate_fn=identity, **TWO) as loader:
        assert PAIRS == firsts(loader)
        assert 0 == loader.stats().retired


# Closing


def test_close_ends_workers_and_can_be_repeated():
    """After close() no worker lives; the batch in hand does; iterating starts afresh."""
    loader = DataLoader(numbers(), batch_size=2, persistent_workers=True, **TWO)
    iterator = iter(loader)
    held = next(iterator)
    workers = iterator._workers
    loader.close()
    loader.close()

    assert [False, False] == [worker.is_alive() for worker in workers]
    assert [0, 1] == held[:, 0].tolist()
    assert PAIRS == firsts(loader)
    loader.close()


def test_with_closes_also_after_an_error():
    """Leaving the with block by an exception ends the workers."""
    with pytest.raises(ZeroDivisionError):  # noqa: SIM117
        with DataLoader(numbers(), **TWO) as loader:
            workers = iter(loader)._workers
            1 / 0  # noqa: B018

    assert [False, False] == [worker.is_alive() for worker in workers]


# Other loaders


@pytest.mark.core(values=1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("flag", ["persistent_workers", "pin_memory", "in_order", "shuffle"])
@pytest.mark.parametrize("value", [(False,), 0], ids=str)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.filterwarnings("ignore:the batches and their order continue")
def test_flags_are_as_true_as_for_torch(flag, value, workers):
    """A tuple of one, as of a trailing comma, is true; in a state of the loader too."""
    if flag == "persistent_workers" and workers == 0:
        pytest.skip("torch refuses a true one")
    rows = {}
    for kind in (TorchDataLoader, DataLoader):
        torch.manual_seed(3)
        loader = kind(list(range(10)), 3, num_workers=workers, **{flag: value})
        rows[kind] = [[batch.tolist() for batch in loader] for _ in range(2)]
    with loader:
        loader.load_state_dict(loader.state_dict())
        loader.report()

    if (flag, value) == ("in_order", 0):
        rows = {kind: [sorted(epoch) for epoch in epochs] for kind, epochs in rows.items()}
    assert rows[TorchDataLoader] == rows[DataLoader]


@pytest.mark.core(first=1)
@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_goes_with_its_loader(workers, is_resumed):
    """Once the loader is dropped, its dataset is not kept until the next collection of garbage."""

    dataset = Computed(4, int)
    loader = DataLoader(dataset, num_workers=workers, shuffle=True)
    if is_resumed:
        loader.load_state_dict(loader.state_dict())
    gc.collect()
    gc.disable()
    try:
        assert 4 == len(list(loader))
        is_there = weakref.ref(dataset)
        del loader, dataset

        assert is_there() is None
    finally:
        gc.enable()
