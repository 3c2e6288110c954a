"""
Errors and warnings are torch's: each test runs both loaders and compares what the user sees.

The last section is better than torch: if torch hangs, an error says what is wrong.
"""

import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from tests.conformance.made import Pair, Record
from tests.helpers.collates import collate_untyped, picture, scan
from tests.torch.golden.faults import DEATHS, EXCEPTIONS, faulty, leave_silently
from tests.torch.golden.outcomes import (
    LOADERS,
    Failure,
    alike,
    attempt,
    forget_frames,
    in_both,
    walk,
)
from tests.torch.golden.privates import IN_TWO_WORKERS

pytestmark = pytest.mark.timeout(60)

# If `iter()` fails, torch's iterator dies half made, and its `__del__` complains.
lets_torch_complain = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

END = Failure("builtins.StopIteration", "")

# Four batches of two from two workers, and how often next() is called: past the end.
STEPS = 6


def failing_at(index, fault):
    """Return a collate function that goes wrong with the batch that holds sample `index`."""

    def collate(samples):
        batch = default_collate(samples)
        return fault(batch) if index in batch else batch

    return collate


# Exceptions in the worker


@pytest.mark.core(every=9)
@pytest.mark.parametrize("options", [IN_TWO_WORKERS, {"batch_size": 2}], ids=["workers", "none"])
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exception_in_dataset(name, options):
    """An exception in `__getitem__` arrives in its batch's place, and iteration goes on."""
    expected = alike(lambda loader: walk(loader(faulty(EXCEPTIONS[name]), **options), STEPS))

    if options is IN_TWO_WORKERS:
        assert 1 == sum(isinstance(outcome, Failure) and outcome != END for outcome in expected)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"in_order": False}], ids=str)
def test_exception_does_not_disturb_the_next_epoch(options):
    """The epoch after one with an exception has the same exception in the same place."""

    def two_epochs(loader_class):
        # One worker, so that the order is fixed without `in_order` as well.
        loader = loader_class(faulty(EXCEPTIONS["value"]), batch_size=2, num_workers=1, **options)
        return [walk(loader, STEPS), walk(loader, STEPS)]

    expected = alike(two_epochs)

    assert expected[0] == expected[1]


@pytest.mark.core(first=1)
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exception_in_collate_fn(name):
    """An exception in `collate_fn` arrives in its batch's place, and iteration goes on."""
    collate = failing_at(2, lambda batch: EXCEPTIONS[name]())

    alike(lambda loader: walk(loader(range(8), collate_fn=collate, **IN_TWO_WORKERS), STEPS))


UNCOLLATABLE = {
    "larger_second": [torch.zeros(2), torch.zeros(3)],
    "larger_first": [torch.zeros(3), torch.zeros(2)],
    "other_rank": [torch.zeros(2), torch.zeros(2, 1)],
    "other_dtype": [torch.zeros(2, dtype=torch.int64), torch.zeros(2)],
    "arrays": [np.zeros(2), np.zeros(3)],
    "text_arrays": [np.array(["a"]), np.array(["b"])],
    "list_lengths": [[1, 2], [1, 2, 3]],
    "missing_key": [{"a": 1}, {"b": 1}],
    "nothing": [None, None],
    "object": [object, object],
    "sparse": [torch.eye(2).to_sparse()] * 2,
    "later_sample": [{"a": [torch.zeros(2)]}, {"a": [torch.zeros(3)]}],
    "number_then_text": [1, "one"],
    "negative_stride": [np.arange(3)[::-1]] * 2,
    "needs_grad": [torch.zeros(3), torch.zeros(3, requires_grad=True)],
    "sparse_second": [torch.zeros(3), torch.zeros(3).to_sparse()],
    "other_class": [picture(0), scan(1)[0, :3]],
    "meta_second": [torch.zeros(3), torch.ones(3, device="meta")],
}


@pytest.mark.core(every=5)
@pytest.mark.parametrize("collate_fn", [default_collate, collate_untyped])
@pytest.mark.parametrize("name", UNCOLLATABLE)
def test_samples_that_do_not_collate(name, collate_fn):
    """Samples are refused with the same words, and the next batch arrives."""
    samples = [*UNCOLLATABLE[name], torch.ones(3), torch.ones(3)]
    options = {**IN_TWO_WORKERS, "num_workers": 1, "collate_fn": collate_fn}

    expected = alike(lambda loader: walk(loader(samples, **options), 2))

    assert isinstance(expected[0], Failure) or collate_fn is collate_untyped


def endless(kind):
    """Return a sample that contains itself."""
    inner = []
    sample = {"list": inner, "tuple": (1, inner), "dict": {"self": 1, "list": inner}}[kind]
    inner.append(sample)
    if kind == "dict":
        sample["self"] = sample
    return sample


def raise_the_limit(worker):
    # Of levels of Python code, which take no stack of C's.
    sys.setrecursionlimit(5000)


@pytest.mark.core(first=1)
@pytest.mark.parametrize("worker_init_fn", [None, raise_the_limit])
@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_samples_that_contain_themselves(loader_class, kind, worker_init_fn):
    """A sample without an end is a RecursionError, and the worker lives to make the next batch."""
    samples = [endless(kind)] * 2 + [1, 2]
    batches = iter(loader_class(samples, 2, num_workers=1, worker_init_fn=worker_init_fn))

    with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
        next(batches)
    (last,) = batches
    assert [1, 2] == last.tolist()


@pytest.mark.thorough
def test_samples_too_deep_to_collate():
    """The error for samples that are nested deeper than torch can collate is torch's, as short."""
    samples = [1.5, 1.5, 1, 2]
    for _ in range(5000):
        samples[:2] = [samples[0]], [samples[1]]

    def outcome(loader_class):
        batches = iter(loader_class(samples, 2, num_workers=1))
        with pytest.raises(RecursionError) as caught:
            next(batches)
        text = str(forget_frames(caught.value))
        return text.splitlines()[0], text.splitlines()[-1], len(text) < 4000, next(batches).tolist()

    alike(outcome)


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["value", "key", "two_arguments"])
def test_exception_in_worker_init_fn(name, persistent):
    """A worker whose `worker_init_fn` fails reports that once, then that it has no fetcher."""

    def two_epochs(loader_class):
        loader = loader_class(
            range(8),
            worker_init_fn=lambda worker: worker == 1 and EXCEPTIONS[name](),
            persistent_workers=persistent,
            **IN_TWO_WORKERS,
        )
        return [walk(loader, STEPS), walk(loader, STEPS)]

    expected = alike(two_epochs)

    assert "builtins.UnboundLocalError" in [outcome[0] for outcome in expected[0]]


class FaultyStream(IterableDataset):
    """Four numbers, then a fault; with `start`, the fault comes before the first."""

    def __init__(self, fault, start=False):
        self.fault = fault
        self.start = start

    def __iter__(self):
        if self.start:
            self.fault()
        return self.numbers()

    def numbers(self):
        yield from range(4)
        self.fault()


@pytest.mark.core(first=1)
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("name", ["value", "key", "stop_iteration", "two_arguments"])
def test_exception_in_iterable_dataset(name, start):
    """An exception in `__iter__`, or in the iterator that it returned, arrives as in torch."""
    dataset = FaultyStream(EXCEPTIONS[name], start)

    alike(lambda loader: walk(loader(dataset, **IN_TWO_WORKERS), 8))


# Exceptions in the trainer


class FaultySampler:
    """Draws `good` indices of eight and then fails; with None, `__iter__` itself fails."""

    def __init__(self, good):
        self.good = good

    def __iter__(self):
        if self.good is None:
            EXCEPTIONS["value"]()
        return self.draws()

    def draws(self):
        yield from range(self.good)
        EXCEPTIONS["value"]()

    def __len__(self):
        return 8


@pytest.mark.core(first=1)
@lets_torch_complain
@pytest.mark.parametrize("good", [None, 0, 3, 6, 8])
@pytest.mark.parametrize("batch_size", [1, None])
def test_exception_in_sampler(good, batch_size):
    """A sampler's exception comes unchanged out of `iter()` or the `next()` that drew from it."""
    options = {**IN_TWO_WORKERS, "batch_size": batch_size}

    alike(lambda loader: walk(loader(range(8), sampler=FaultySampler(good), **options), 10))


@pytest.mark.core(first=1)
@pytest.mark.parametrize("index", ["text", 2.5, None, (1, 2), 2**70, -1, 100])
def test_odd_indices(index):
    """Any object may be an index: it reaches the dataset as it is."""
    options = {**IN_TWO_WORKERS, "sampler": [0, 1, index, 3]}

    alike(lambda loader: walk(loader(list(range(8)), **options), 4))


# Time and death


# Which dataset ends a worker, and how often next() is called.
DYING = {
    **{name: (faulty(fault, at=4), 3) for name, fault in DEATHS.items()},
    "the others' batches come": (faulty(DEATHS["sigkill"], at=4), STEPS),
    "at the first sample of one": (faulty(DEATHS["os_exit"], worker=0), 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", DYING)
def test_death_of_a_worker(name):
    """A worker's death is torch's error, with the signal or exit code as its cause."""
    dataset, steps = DYING[name]
    expected = alike(lambda loader: walk(loader(dataset, **IN_TWO_WORKERS), steps))

    assert any(isinstance(outcome, Failure) and outcome.cause for outcome in expected)


@pytest.mark.thorough
def test_death_without_a_trace(monkeypatch):
    """A worker that exits with code 0 in mid-batch is noticed by looking at it."""
    look = _MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(look, "__defaults__", (0.5,))  # torch looks once in five seconds
    alike(lambda loader: walk(loader(faulty(leave_silently, at=4), **IN_TWO_WORKERS), 3))


# Arguments


def unpicklable_dataset():
    class Local(torch.utils.data.Dataset):
        def __len__(self):
            return 4

    return Local()


WRONG_ARGUMENTS = [
    {"num_workers": -1},
    {"num_workers": 1.5},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": 0},
    {"num_workers": 1, "prefetch_factor": -1},
    {"num_workers": 1, "prefetch_factor": 0},
    {"persistent_workers": True},
    {"timeout": 1},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "thread"},
    {"num_workers": 1, "multiprocessing_context": 7},
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": 2.0},
    {"batch_size": True},
    {"drop_last": "yes"},
    {"unheard_of": 1},
    {"collate_fn": 3},
    {"num_workers": 1, "generator": 3},
    {"sampler": 5},
    {"pin_memory": True},
    {"pin_memory": True, "pin_memory_device": "cuda"},
    {"pin_memory": True, "pin_memory_device": "cuda", "num_workers": 1},
    {"num_workers": 1, "persistent_workers": True, "worker_init_fn": 3},
]


def build_and_walk(loader_class, *arguments, **options):
    """Return the warnings and the outcome of building a loader and taking one batch."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        outcome = attempt(lambda: walk(loader_class(*arguments, **options), 1))
    return outcome, [(warning.category, str(warning.message)) for warning in caught]


@lets_torch_complain
@pytest.mark.parametrize("options", WRONG_ARGUMENTS, ids=str)
def test_wrong_arguments(options):
    """Arguments that torch refuses are refused at the same moment, with the same type and words."""
    expected, actual = in_both(lambda loader: build_and_walk(loader, range(4), **options))

    assert expected == actual


@pytest.mark.parametrize("dataset", [[], iter([1]), 5, None], ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("shuffle", [False, True])
def test_odd_datasets(dataset, shuffle):
    """An empty dataset, one without a length, and objects that are no datasets, as in torch."""
    options = {"shuffle": shuffle, "num_workers": 1}

    alike(lambda loader: build_and_walk(loader, dataset, **options))


@pytest.mark.core(every=2)
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_dataset_that_cannot_be_sent(start):
    """An object that cannot be spawned is torch's error at `iter()`, with a warning of our own."""
    options = {"num_workers": 1, "multiprocessing_context": start}
    dataset = unpicklable_dataset()

    expected, actual = in_both(lambda loader: build_and_walk(loader, dataset, **options))

    prefix = "Got pickle error when attempting to start a worker Process"
    assert expected[0] == actual[0]
    assert [prefix] * 2 == [found[1][0][1][: len(prefix)] for found in (expected, actual)]


GUARDED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


@pytest.mark.parametrize("attribute", GUARDED)
def test_attribute_set_after_init(attribute):
    """The attributes that a running loader depends on cannot be set; the error names the class."""

    def scenario(loader_class):
        class Special(loader_class):
            pass

        loaders = loader_class(range(4)), Special(range(4))
        return [attempt(lambda: setattr(loader, attribute, None)) for loader in loaders]  # noqa: B023

    expected = alike(scenario)

    assert "Special" in expected[1].text


# Better than torch, which hangs in all of these


UNPICKLABLE = {
    "function": lambda: lambda: None,
    "lock": threading.Lock,
    "generator": lambda: (number for number in range(3)),
    "computed": lambda: torch.ones(2, requires_grad=True) * 2,
}

PATHS = {
    "batch": lambda leaf: leaf,
    "batch[1]": lambda leaf: [0, leaf],
    "batch['meta'][3]": lambda leaf: {"image": torch.zeros(2), "meta": [1, 2, 3, leaf]},
    "batch[0]['a'][1]": lambda leaf: ({"a": (None, leaf)}, torch.zeros(2)),
    "batch[1][0]": lambda leaf: Pair(1, (leaf, torch.zeros(100, 100)[3])),
    "batch[0].other": lambda leaf: [Record(1, other=leaf)],
    "batch[1]['bad']": lambda leaf: in_a_cycle(leaf),
}


def in_a_cycle(leaf):
    batch = [1, {}]
    batch[1] |= {"back": batch, "bad": leaf}
    return batch


def walk_ours(dataset, **options):
    return walk(LOADERS["ours"](dataset, **IN_TWO_WORKERS, **options), STEPS)


def assert_only_second_fails(outcomes):
    failed = [isinstance(outcome, Failure) for outcome in outcomes[:4]]
    assert [False, True, False, False] == failed
    assert [END, END] == outcomes[4:]


@pytest.mark.core(every=5)
@pytest.mark.parametrize("name", UNPICKLABLE)
@pytest.mark.parametrize("path", PATHS)
def test_unpicklable_leaf_is_named(path, name):
    """A batch that cannot be sent is an error that says where in the batch the reason is."""
    collate = failing_at(2, lambda batch: PATHS[path](UNPICKLABLE[name]()))

    outcomes = walk_ours(range(8), collate_fn=collate)

    assert_only_second_fails(outcomes)
    assert path in outcomes[1].text


def test_unpicklable_exception_arrives():
    """An exception of a class that the trainer cannot import arrives with its name and its text."""

    class Local(Exception):
        pass

    def fault():
        raise Local("sample is broken")

    outcomes = walk_ours(faulty(fault))

    assert_only_second_fails(outcomes)
    assert "Local" in outcomes[1].text
    assert "sample is broken" in outcomes[1].text
