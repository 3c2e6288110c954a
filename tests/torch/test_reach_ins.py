"""
The parts of torch's DataLoader that other projects reach for: each test runs on torch's, then ours.
"""

import gc
import itertools
import multiprocessing
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from tests.helpers.programs import wait_until
from tests.torch.golden.describe import describe
from tests.torch.golden.outcomes import alike
from tests.torch.golden.privates import (
    BATCHES,
    IN_TWO_WORKERS,
    Forever,
    WorkerFacts,
    first_of,
    is_gone,
    numbering_batches,
    numbers,
    pids_of,
    sampled_forever,
)

pytestmark = pytest.mark.timeout(60)

WORKERS = 2
IN_FLIGHT = 4  # what two workers with torch's default prefetch_factor have ahead


@pytest.fixture
def without_collector():
    """Let only reference counts free the objects that a test drops."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# Types


def test_types(build):
    """A loader and its iterator are instances of torch's classes."""
    loader = build()
    iterator = iter(loader)

    assert isinstance(loader, TorchDataLoader)
    assert isinstance(iterator, _MultiProcessingDataLoaderIter)
    assert isinstance(iterator, _BaseDataLoaderIter)
    assert isinstance(iterator, Iterator)
    assert iter(iterator) is iterator


# Attributes of the loader


@pytest.mark.parametrize("persistent", [False, True])
def test_iterator_attribute(build, persistent):
    """`_iterator` holds the iterator of a loader with persistent workers, otherwise None."""
    loader = build(persistent_workers=persistent)
    assert loader._iterator is None

    iterator = iter(loader)

    assert (iterator if persistent else None) is loader._iterator
    assert BATCHES == numbers(iterator)


@pytest.mark.thorough
def test_shutting_down_by_hand(build):
    """Stopping a loader's persistent workers and forgetting its iterator starts it afresh."""
    loader = build(persistent_workers=True)
    assert BATCHES == numbers(loader)
    pids = pids_of(loader._iterator)

    loader._iterator._shutdown_workers()
    loader._iterator = None

    assert all(map(is_gone, pids))
    assert BATCHES == numbers(loader)


def test_shutting_down_twice(build):
    """Workers exit with code 0; stopping them again does nothing."""
    iterator = iter(build())
    next(iterator)

    iterator._shutdown_workers()
    iterator._shutdown_workers()

    assert [0, 0] == [worker.exitcode for worker in iterator._workers]


@pytest.mark.thorough
def test_get_iterator(build):
    """`_get_iterator()` is the hook that makes a new iterator, even with persistent workers."""
    loader = build(persistent_workers=True)
    first, second = loader._get_iterator(), loader._get_iterator()

    assert first is not second
    assert BATCHES == numbers(first) == numbers(second)


# Attributes of the iterator


def test_workers(build):
    """`_workers` lists the running processes, daemons of this one."""
    iterator = iter(build())
    workers = iterator._workers

    assert WORKERS == len(workers) == len(iterator._index_queues)
    assert all(worker.is_alive() and worker.daemon for worker in workers)
    assert {worker.pid for worker in workers} <= {
        child.pid for child in multiprocessing.active_children()
    }
    assert [None, None] == [worker.exitcode for worker in workers]


def test_data_queue_size(build):
    """`_data_queue.qsize()` counts the batches that wait for the trainer to receive them."""
    iterator = iter(build(dataset=range(40)))

    assert wait_until(lambda: iterator._data_queue.qsize() == IN_FLIGHT)
    # torch's counts a batch before its feeder thread has sent it.
    assert wait_until(lambda: not iterator._data_queue.empty())
    assert iterator._data_queue is iterator._worker_result_queue
    next(iterator)
    assert wait_until(lambda: iterator._data_queue.qsize() + early(iterator) == IN_FLIGHT)


def early(iterator):
    """Count the batches that were received before their turn."""
    return sum(len(task) == 2 for task in iterator._task_info.values())


def test_index_queue_size(build):
    """`_index_queues[i].qsize()` counts the requests a worker has not taken: none in the end."""
    iterator = iter(build())

    assert wait_until(lambda: [0, 0] == [queue.qsize() for queue in iterator._index_queues])
    assert all(queue.empty() for queue in iterator._index_queues)


def test_counters(build):
    """The iterator's counters and its table of tasks are torch's."""
    iterator = iter(build(dataset=range(40)))
    start = iterator._send_idx, iterator._rcvd_idx, iterator._num_yielded
    tasks = sorted(iterator._task_info)
    next(iterator)
    then = iterator._send_idx, iterator._rcvd_idx, iterator._num_yielded

    assert (IN_FLIGHT, 0, 0) == start
    assert [0, 1, 2, 3] == tasks
    assert (IN_FLIGHT + 1, 1, 1) == then
    assert IN_FLIGHT == iterator._tasks_outstanding + early(iterator)


def test_index_sampler(build):
    """`_index_sampler` has the attributes of the loader's sampler of batches, and its length."""
    loader = build()
    sampler = iter(loader)._index_sampler

    assert loader.sampler is sampler.sampler
    assert (loader.batch_size, len(loader)) == (sampler.batch_size, len(sampler))


def test_worker_facts(build):
    """
    A worker's `get_worker_info()`, threads and name are torch's; the trainer has no such info.
    """
    dataset = WorkerFacts("its name")
    iterator = iter(build(dataset=dataset, batch_size=1, collate_fn=first_of))
    expected = {
        "workers": WORKERS,
        "dataset": "its name",
        "method": "multiprocessing",
        "type": "WorkerInfo",
        "torch_threads": 1,
        "thread_name": "pt_data_worker",
        "is_main_thread": True,
        "parent": multiprocessing.current_process().pid,
    }

    for worker, facts in enumerate(itertools.islice(iterator, WORKERS)):
        own = {"id": worker, "seed": iterator._base_seed + worker}
        assert {**expected, **own} == facts
    assert get_worker_info() is None


# Life and death


@pytest.mark.thorough
def test_iterator_dies_by_reference_count(build, without_collector):
    """Dropping an iterator in mid-epoch ends it and its workers, while a batch is still held."""
    iterator = iter(build())
    held = next(iterator)
    alive, pids = weakref.ref(iterator), pids_of(iterator)

    del iterator

    assert alive() is None
    assert all(map(is_gone, pids))
    assert [0, 1] == held.tolist()


@pytest.mark.core(first=1)
@pytest.mark.parametrize("persistent", [False, True])
def test_loader_dies_by_reference_count(build, without_collector, persistent):
    """Dropping a loader after an epoch ends it, and its persistent workers with it."""
    loader = build(persistent_workers=persistent)
    iterator = iter(loader)
    pids, held = pids_of(iterator), list(iterator)
    alive = weakref.ref(loader), weakref.ref(iterator)

    del loader, iterator

    assert [None, None] == [reference() for reference in alive]
    assert all(map(is_gone, pids))
    assert BATCHES == numbers(held)


@pytest.mark.thorough
def test_iterator_outlives_its_loader(build, without_collector):
    """An iterator does not keep its loader, and goes on without it."""
    loader = build()
    iterator = iter(loader)
    alive = weakref.ref(loader)

    del loader

    assert alive() is None
    assert BATCHES == numbers(iterator)


# Several iterators at once


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_loader_zipped_with_itself(persistent):
    """
    Two live iterators of one loader each go through an epoch; persistent ones are the same one.
    """

    def scenario(loader_class):
        torch.manual_seed(5)
        loader = loader_class(
            range(8), shuffle=True, persistent_workers=persistent, **IN_TWO_WORKERS
        )
        return [describe(pair) for _ in range(2) for pair in zip(loader, loader, strict=False)]

    alike(scenario)


# Subclasses


def test_one_endless_iterator(loader_class, build):
    """A subclass may put in an endless batch sampler and take its epochs from one iterator."""
    loader = build(of=sampled_forever(loader_class))
    pids = pids_of(loader.iterator)

    assert [BATCHES] * 3 == [numbers(loader) for _ in range(3)]
    assert pids == pids_of(loader.iterator)
    assert isinstance(loader.batch_sampler, Forever)


@pytest.mark.thorough
def test_subclass_with_arguments_and_an_iter_of_its_own(loader_class, build):
    """A subclass may forward its keyword arguments and wrap what the loader yields."""
    loader = build(of=numbering_batches(loader_class), first=10)

    for _ in range(2):
        assert [*enumerate(BATCHES, 10)] == [(number, batch.tolist()) for number, batch in loader]
    assert 4 == len(loader)


# Hooks


class Backwards:
    """Batches of another sampler in the other order."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        return reversed(list(self.sampler))

    def __len__(self):
        return len(self.sampler)


def skip(iterator, loader):
    """Go to the place of a recovery, as speechbrain does."""
    for done in range(loader.skip_to):
        next(iterator._sampler_iter)
        iterator._num_yielded = done + 1


SET = {
    "a place": skip,
    "a sampler": lambda it, _: setattr(it, "_index_sampler", Backwards(it._index_sampler)),
    "an iterator": lambda it, _: setattr(it, "_sampler_iter", iter([[5], [6, 7]])),
    "a dataset": lambda it, _: setattr(it, "_dataset", range(10, 18)),
    "a function": lambda it, _: setattr(it, "_collate_fn", sum_of),
    "a seed": lambda it, _: setattr(it, "_base_seed", 5),
    "a timeout": lambda it, _: setattr(it, "_timeout", 50),
    "a name": lambda it, _: setattr(it, "_profile_name", "its name"),
}


def sum_of(samples):
    return torch.tensor(samples).sum() + torch.rand(())


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("what", "workers"), [(what, n) for what in SET for n in (0, 2) if n or what != "a timeout"]
)
def test_what_a_library_sets_when_an_iterator_begins(monkeypatch, what, workers):
    """It stands: a place too that is kept in the first `_reset()`, resumed twice."""
    base, options = _BaseDataLoaderIter, {"collate_fn": sum_of} if what == "a seed" else {}
    options |= IN_TWO_WORKERS if workers else {"batch_size": 2}
    keeps = what in ("a place", "an iterator")
    begin, reset = base.__init__, base._reset

    def begin_there(self, loader, *more):
        begin(self, loader, *more)
        SET[what](self, loader)

    def reset_later(self, loader, first_iter=False):
        if not (keeps and first_iter):
            reset(self, loader, first_iter)

    monkeypatch.setattr(base, "__init__", begin_there)
    monkeypatch.setattr(base, "_reset", reset_later)

    def scenario(loader_class):
        seen, place = [], 0
        for _ in range(3 if keeps else 1):
            torch.manual_seed(5)
            loader = loader_class(range(8), **options)
            loader.skip_to = place
            iterator = iter(loader)
            seen += [next(iterator).tolist(), iterator._num_yielded, iterator._timeout]
            place = iterator._num_yielded
            seen += [iterator._profile_name == "its name", *numbers(iterator)]
        return seen

    alike(scenario)


@pytest.mark.parametrize(
    ("kind", "collates", "batches"),
    [
        (torch.tensor, lambda batch, *, collate_fn_map: torch.stack(batch) * 2, [[0, 2], [4, 6]]),
        (int, lambda batch, *, collate_fn_map: torch.tensor(sum(batch)), [1, 5]),
    ],
)
def test_replaced_collate_function(build, monkeypatch, kind, collates, batches):
    """A user's entry for tensors or numbers in `default_collate_fn_map` collates them."""
    monkeypatch.setitem(default_collate_fn_map, type(kind(0)), collates)

    assert batches == numbers(build(dataset=[kind(number) for number in range(4)]))


def test_added_collate_function(build, monkeypatch):
    """A user's entry for a type that torch refuses is used, even deep inside a sample."""
    monkeypatch.setitem(default_collate_fn_map, slice, lambda batch, *, collate_fn_map: [*batch])
    samples = [{"cut": (slice(0, number), number)} for number in range(2)]

    [batch] = build(dataset=samples)

    assert [slice(0, 0), slice(0, 1)] == batch["cut"][0]
    assert [0, 1] == batch["cut"][1].tolist()


@pytest.mark.thorough
def test_profiler_range(build):
    """`next()` shows in a profile under the prefix by which tools find it."""
    iterator = iter(build())
    with torch.autograd.profiler.profile() as profile:
        next(iterator)
    names = [event.name for event in profile.function_events]

    assert f"enumerate(DataLoader)#{type(iterator).__name__}.__next__" in names
