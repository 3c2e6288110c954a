"""The public face: options and their errors, closing, iterating in every way, counters, wrap()."""

import copy
import gc
import pickle
import re
import time
import weakref

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    SequentialSampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

import shmloader
from shmloader import DataLoader, wrap
from shmloader.stats import Stats

TWO = {"num_workers": 2, "multiprocessing_context": "fork"}
COUNT = 12
PAIRS = [[index, index + 1] for index in range(0, COUNT, 2)]


class Numbers(Dataset):
    """Twelve numbers, each as a row of eight."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.full((8,), index)


class InBulk(Numbers):
    """The same numbers, asked for by the list."""

    def __getitems__(self, indices):
        return [self[index] + 100 for index in indices]


class Shards(IterableDataset):
    """Each worker yields its share of the numbers."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id, COUNT, info.num_workers))


class FirstIsSlow(Numbers):
    """Worker 0 takes its time for its first number."""

    def __getitem__(self, index):
        if index == 0:
            time.sleep(1.0)
        return super().__getitem__(index)


class EmptyRows(Numbers):
    """Whole batches in memory of the slot, filled in place."""

    def __getitems__(self, indices):
        rows = shmloader.empty((len(indices), 8), dtype=torch.int64)
        rows[:] = torch.tensor(indices).reshape(-1, 1)
        return rows


def is_shared(tensor):
    """Returns True if a tensor's memory is part of a shared mapping of this process."""
    address = tensor.data_ptr()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            span, permissions, _, _, _, *target = line.split(maxsplit=5)
            start, end = (int(bound, 16) for bound in span.split("-"))
            if start <= address < end:
                return permissions[3] == "s" and "shmloader" in "".join(target)
    return False


def repickled(loader):
    return pickle.loads(pickle.dumps(loader))


def collate_and_tell(samples):
    """Collate, and add True to the batch if it was collated into shared memory."""
    batch = default_collate(samples)
    return {"batch": batch, "in slot": is_shared(batch)}


def collate_into_empty(samples):
    """Fill memory of the slot by hand."""
    batch = shmloader.empty((len(samples), 8), torch.int64)
    torch.stack(samples, out=batch)
    return batch, is_shared(batch)


def whole(batch):
    return batch


def firsts(loader):
    """Return the first column of each batch."""
    return [batch[:, 0].tolist() for batch in loader]


# Options


@pytest.mark.parametrize("name", ["slots", "slot_bytes", "ring_bytes"])
@pytest.mark.parametrize("value", [1.5, "3", True, numpy.float64(8), numpy.bool_(True)])
def test_option_of_another_type_is_refused(name, value):
    """An option is an int or None; the error names it and shows what it was."""
    with pytest.raises(
        TypeError, match=f"{name} should be an int or None, but got {re.escape(repr(value))}"
    ):
        DataLoader(Numbers(), **{name: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slots": 0}, "slots should be at least 1, but got 0"),
        ({"slots": 1 << 30}, "slots should be at most"),
        ({"slot_bytes": -1}, "slot_bytes should be at least 1, but got -1"),
        ({"ring_bytes": 100}, "ring_bytes should be at least 65536, but got 100"),
        ({"ring_bytes": 1 << 64}, f"ring_bytes should be at most {1 << 62}, but got {1 << 64}"),
        ({"slot_bytes": 1 << 64}, f"slot_bytes should be at most {1 << 62}, but got {1 << 64}"),
        ({"slot_bytes": 1 << 20, "ring_bytes": 1 << 19}, "raise ring_bytes to at least 1048576"),
    ],
)
def test_option_out_of_range_is_refused(options, words):
    """The error names the bound that was crossed."""
    with pytest.raises(ValueError, match=words):
        DataLoader(Numbers(), **options)


@pytest.mark.parametrize("integer", [numpy.int64, numpy.uint8, numpy.int32])
def test_integers_of_numpy_are_integers(integer):
    """Options take numpy's integers, as torch's own do, and are read back as Python's."""
    options = {"slots": 7, "slot_bytes": 100, "restarts": 2}
    given = {name: integer(value) for name, value in options.items()}

    loader = DataLoader(Numbers(), num_workers=integer(2), batch_size=2, **given)

    assert options == {name: getattr(loader, name) for name in options}
    assert {int} == {type(getattr(loader, name)) for name in options}
    assert PAIRS == firsts(loader)


def test_options_are_attributes_and_keyword_only():
    """Every option can be read back by its name, as frameworks that rebuild a loader need."""
    options = {"slots": 3, "slot_bytes": 1000, "ring_bytes": 1 << 20}
    loader = DataLoader(Numbers(), num_workers=1, **options)

    assert (3, 1000, 1 << 20) == (loader.slots, loader.slot_bytes, loader.ring_bytes)
    with pytest.raises(TypeError):
        DataLoader(Numbers(), 1, None, None, None, 0, None, False, False, 0, None, None, None, 3)


@pytest.mark.parametrize("slots", [1, 2, 3, 50])
def test_any_number_of_slots_works(slots):
    """Slots are tuning: with any number of them every batch can be kept."""
    with DataLoader(Numbers(), batch_size=2, slots=slots, **TWO) as loader:
        kept = list(loader)

    assert PAIRS == [batch[:, 0].tolist() for batch in kept]


def test_ring_bytes_bounds_the_number_of_slots():
    """With slot_bytes given and slots left open, there are as many slots as the budget holds."""
    with DataLoader(Numbers(), slot_bytes=1 << 20, ring_bytes=3 << 20, **TWO) as loader:
        next(iter(loader))

        assert 3 == sum(loader.stats().slots.values()) - loader.stats().slots["spare"]


def test_without_workers_the_iterator_is_torchs():
    """num_workers=0 is torch's own path: its iterator, which only notes where it is."""
    loader = DataLoader(Numbers(), batch_size=2)

    assert isinstance(iter(loader), _SingleProcessDataLoaderIter)
    assert PAIRS == firsts(loader)
    assert Stats() == loader.stats()
    loader.close()


# Iterating


def test_several_iterators_live_at_once():
    """Iterators of one loader have segments of their own."""
    with DataLoader(Numbers(), batch_size=2, **TWO) as loader:
        both = [
            (one[0, 0].item(), other[0, 0].item())
            for one, other in zip(loader, loader, strict=True)
        ]

    assert [(pair[0], pair[0]) for pair in PAIRS] == both


@pytest.mark.parametrize("persistent", [False, True])
def test_epoch_after_a_break_is_whole(persistent):
    """
    Leaving an epoch in the middle takes nothing from the next one, nor from the batch in hand.
    """
    with DataLoader(Numbers(), batch_size=2, persistent_workers=persistent, **TWO) as loader:
        for count in range(3):
            for held in loader:
                if held[0, 0] >= 2 * count:
                    break
            assert PAIRS == firsts(loader)
            assert 2 * count == held[0, 0]


def test_out_of_order_does_not_wait_for_the_slow():
    """With in_order=False a slow batch comes when it is ready, and none is missing."""
    with DataLoader(FirstIsSlow(), batch_size=2, in_order=False, **TWO) as loader:
        batches = firsts(loader)

    assert PAIRS == sorted(batches)
    assert [0, 1] != batches[0]


def test_samples_without_batches():
    """batch_size=None delivers the samples themselves."""
    with DataLoader(Numbers(), batch_size=None, **TWO) as loader:
        samples = list(loader)

    assert list(range(COUNT)) == [sample[0].item() for sample in samples]
    assert torch.Size([8]) == samples[0].shape


def test_batches_from_a_sampler_of_batches():
    """batch_size=None with a batch sampler hands whole lists of indices to the dataset."""
    sampler = BatchSampler(SequentialSampler(range(COUNT)), 2, drop_last=False)
    dataset = numpy.arange(COUNT)
    with DataLoader(dataset, sampler=sampler, batch_size=None, **TWO) as loader:
        assert PAIRS == [batch.tolist() for batch in loader]


def test_samples_in_bulk():
    """A dataset's __getitems__ is asked for each batch at once."""
    with DataLoader(InBulk(), batch_size=2, **TWO) as loader:
        assert [[a + 100, b + 100] for a, b in PAIRS] == firsts(loader)


def test_iterable_shards():
    """An iterable dataset ends when all workers' shares have ended, in torch's order."""
    with DataLoader(Shards(), batch_size=2, **TWO) as ours:
        batches = [batch.tolist() for batch in ours]

    assert [batch.tolist() for batch in TorchDataLoader(Shards(), batch_size=2, **TWO)] == batches


# Memory of the slot


def test_default_collate_inside_collate_fn_lands_in_the_slot():
    """In the worker the collated batch lies in the segment already: nothing copies it again."""
    with DataLoader(Numbers(), batch_size=2, collate_fn=collate_and_tell, **TWO) as loader:
        batches = list(loader)

    assert [True] * 6 == [batch["in slot"] for batch in batches]
    assert PAIRS == firsts(batch["batch"] for batch in batches)


def test_empty_in_collate_fn_lies_in_the_slot():
    """shmloader.empty() in a collate function is memory of the slot."""
    with DataLoader(Numbers(), batch_size=2, collate_fn=collate_into_empty, **TWO) as loader:
        batches = list(loader)

    assert [True] * 6 == [in_slot for _, in_slot in batches]
    assert PAIRS == firsts(batch for batch, _ in batches)


def test_empty_in_a_dataset():
    """A dataset may fill a whole batch in the slot, with a collate function that passes it on."""
    with DataLoader(EmptyRows(), batch_size=2, collate_fn=whole, **TWO) as loader:
        assert PAIRS == firsts(loader)
        assert 0 == loader.stats().retired


def test_empty_outside_of_workers():
    """Anywhere else it is an ordinary tensor."""
    assert not is_shared(shmloader.empty(1000))
    assert (torch.Size([3, 2]), torch.int8) == (
        shmloader.empty((3, 2), torch.int8).shape,
        shmloader.empty((3, 2), torch.int8).dtype,
    )


# Counters


def test_stats_count_what_was_delivered():
    """Batches and bytes over two epochs, slots by state, and nothing pickled for plain tensors."""
    with DataLoader(Numbers(), batch_size=2, slots=9, **TWO) as loader:
        for _ in range(2):
            held = list(loader)[:1]
        stats = loader.stats()

    assert 12 == stats.batches
    assert 12 * 2 * 8 * 8 == stats.bytes
    assert (0, 0, 0) == (stats.pickled_bytes, stats.pickled_batches, stats.retired)
    assert 9 == sum(stats.slots.values()) - stats.slots["spare"]
    assert stats.worker_busy_s > 0
    assert torch.equal(torch.zeros(8, dtype=torch.int64), held[0][0])


def test_stats_outlive_close():
    """Counts outlive the memory."""
    loader = DataLoader(Numbers(), batch_size=2, **TWO)
    list(loader)
    loader.close()

    assert (6, 0, {}) == (
        loader.stats().batches,
        loader.stats().resident_bytes,
        loader.stats().slots,
    )


def test_spilled_batches_are_counted():
    """Keeping more batches than slots can be spared shows in the counters."""
    with DataLoader(Numbers(), slots=4, **TWO) as loader:
        kept = list(loader)

        assert len(kept) - 4 <= loader.stats().spilled <= len(kept)


# Closing


def test_close_ends_workers_and_can_be_repeated():
    """After close() no worker lives; the batch in hand does; iterating starts afresh."""
    loader = DataLoader(Numbers(), batch_size=2, persistent_workers=True, **TWO)
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
        with DataLoader(Numbers(), **TWO) as loader:
            workers = iter(loader)._workers
            1 / 0  # noqa: B018

    assert [False, False] == [worker.is_alive() for worker in workers]


@pytest.mark.thorough
def test_iterator_of_a_closed_loader_disturbs_no_other():
    """Going on with an iterator after close() is an error, and takes no slots of a later epoch."""
    loader = DataLoader(FirstIsSlow(), batch_size=2, slots=8, **TWO)
    old = iter(loader)
    # Worker 1's batches are there while worker 0 sleeps: received, and not due yet.
    old._transport.wait(0.5, old._task_info)
    first = next(old)
    time.sleep(0.2)
    old._try_get_data(0.1)
    loader.close()
    again = iter(loader)
    with pytest.raises((AssertionError, RuntimeError, StopIteration)) as seen:
        for _ in range(20):
            next(old)
    seen.value.__traceback__ = None

    assert PAIRS == firsts(again)
    assert [0, 1] == first[:, 0].tolist()
    loader.close()


# Other loaders


def test_wrap_shares_what_the_loader_had():
    """wrap() gives a loader of ours with the same dataset and sampler, the options on top."""
    stock = TorchDataLoader(Numbers(), batch_size=2, **TWO)
    ours = wrap(stock, slots=5)

    assert isinstance(ours, DataLoader)
    assert (stock.dataset, stock.batch_sampler, 5) == (ours.dataset, ours.batch_sampler, ours.slots)
    assert PAIRS == firsts(ours) == firsts(stock)
    ours.close()


class Special(TorchDataLoader):
    """A user's loader class."""

    def greeting(self):
        return f"{len(self)} batches"


def test_wrap_keeps_the_class():
    """The wrapped loader has the methods of the class that it had, even after pickling."""
    ours = wrap(Special(Numbers(), batch_size=2, **TWO))
    again = pickle.loads(pickle.dumps(ours))

    assert ["6 batches"] * 2 == [ours.greeting(), again.greeting()]
    assert isinstance(again, DataLoader) and isinstance(again, Special)
    assert PAIRS == firsts(again)
    again.close()


@pytest.mark.parametrize("thing", [[1, 2], Numbers()])
def test_wrap_refuses_other_things(thing):
    """Only a torch DataLoader can be wrapped, and only with options that exist."""
    with pytest.raises(TypeError, match=f"but got {type(thing).__name__}"):
        wrap(thing)
    with pytest.raises(TypeError):
        wrap(TorchDataLoader(Numbers()), speed=3)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, repickled])
def test_copies_are_loaders_of_their_own(duplicate):
    """A copied or pickled loader has the options and shares no segment."""
    loader = DataLoader(Numbers(), batch_size=2, slots=5, **TWO)
    list(loader)
    other = duplicate(loader)

    assert 5 == other.slots
    assert 0 == other.stats().batches
    assert PAIRS == firsts(other)
    loader.close()
    assert PAIRS == firsts(other)
    other.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("flag", ["persistent_workers", "pin_memory", "in_order", "shuffle"])
@pytest.mark.parametrize("value", [(False,), 0], ids=str)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.filterwarnings("ignore:the batches and their order go on")
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


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_goes_with_its_loader(workers, is_resumed):
    """Once the loader is dropped, its dataset is not kept until the next collection of garbage."""

    class Numbers(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    dataset = Numbers()
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
