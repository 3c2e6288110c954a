"""Planned requests: torch's indices from torch's generators, drawn at the same moments."""

import pickle

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from shmloader import DataLoader
from shmloader.core import Indices, Plan
from shmloader.order import planning
from tests.helpers.datasets import Computed


def generator_of(seed):
    return None if seed is None else torch.Generator().manual_seed(seed)


def state_of(generator):
    return generator.get_state().numpy().tobytes()


def trace(requests, generators, most):
    """Draw up to a number of requests; each with the state that the generators are left in."""
    steps = []
    for _ in range(most):
        try:
            request = next(requests)
        except StopIteration:
            request = None
        steps.append((request and list(request), *map(state_of, generators)))
    return steps


def compare(make, generators_of, most=40):
    """Check that a plan and torch's own iterator do the same, step by step and beyond the end."""
    traces = []
    for plans in (False, True):
        torch.manual_seed(8)
        sampler = make()
        requests = planning.plan(sampler) if plans else iter(sampler)
        assert requests is not None
        generators = [torch.default_generator, *generators_of(sampler)]
        traces.append(trace(requests, generators, most))
    assert traces[0] == traces[1]


@pytest.mark.thorough
@given(
    length=st.integers(1, 50),
    size=st.integers(1, 20),
    drop_last=st.booleans(),
    seed=st.none() | st.integers(0, 2**63 - 1),
)
def test_permutations(length, size, drop_last, seed):
    """One permutation, with a generator of the sampler's or the default one."""

    def make():
        inner = RandomSampler(range(length), generator=generator_of(seed))
        return BatchSampler(inner, size, drop_last)

    compare(make, lambda made: [] if seed is None else [made.sampler.generator])


@pytest.mark.thorough
@given(length=st.integers(0, 50), size=st.integers(1, 20), drop_last=st.booleans())
def test_sequences(length, size, drop_last):
    """In order, an empty dataset included."""
    compare(
        lambda: BatchSampler(SequentialSampler(range(length)), size, drop_last), lambda made: []
    )


@pytest.mark.thorough
@given(
    length=st.integers(1, 40),
    replicas=st.integers(1, 50),
    rank=st.integers(0, 49),
    size=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_shares_of_ranks(length, replicas, rank, size, shuffle, drop_last, epoch):
    """Each rank's share, with more ranks than samples too."""
    options = {"num_replicas": replicas, "rank": rank % replicas, "seed": 3}

    def make():
        inner = DistributedSampler(range(length), shuffle=shuffle, drop_last=drop_last, **options)
        inner.set_epoch(epoch)
        return BatchSampler(inner, size, drop_last)

    compare(make, lambda made: [])


class OfTheUser(SequentialSampler):
    """A subclass may draw otherwise."""


class Batches(BatchSampler):
    """And so may this one."""


class WithoutLength:
    """A source that fails when it is asked."""

    def __len__(self):
        raise RuntimeError("no length now")


@pytest.mark.parametrize(
    "sampler",
    [
        BatchSampler(RandomSampler(range(9), replacement=True), 2, False),
        BatchSampler(RandomSampler(range(9), num_samples=4), 2, False),
        BatchSampler(RandomSampler(range(9)), 1 << 70, False),
        BatchSampler(RandomSampler(range(9), num_samples=20), 2, False),
        BatchSampler(WeightedRandomSampler([1.0, 2.0], 5), 2, False),
        BatchSampler(OfTheUser(range(9)), 2, False),
        BatchSampler([3, 1, 2], 2, False),
        BatchSampler(RandomSampler(WithoutLength(), num_samples=4), 2, False),
        Batches(SequentialSampler(range(9)), 2, False),
        SequentialSampler(range(9)),
        [[0, 1], [2]],
    ],
    ids=lambda sampler: type(getattr(sampler, "sampler", sampler)).__name__,
)
def test_others_are_iterated(sampler):
    """Only what is exactly torch's, and draws one permutation, is planned."""
    assert planning.plan(sampler) is None


def in_order(ranks=1):
    """An order that depends on no generator."""
    if ranks == 1:
        return SequentialSampler(range(11))
    return DistributedSampler(range(11), ranks, 1, shuffle=False)


@pytest.mark.parametrize("longest", [5, 100])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("requests", [0, 1, 2, 4])
def test_what_draws_nothing_begins_anywhere(monkeypatch, longest, drop_last, ranks, requests):
    """Behind so many requests come those that would have; of a long sequence without an array."""
    monkeypatch.setattr(planning, "_SEQUENCE_MAX", longest)
    sampler = BatchSampler(in_order(ranks), 3, drop_last)
    jumped = planning.jumped(sampler, requests)

    assert list(sampler)[requests:] == [list(request) for request in jumped]


@pytest.mark.parametrize(
    "sampler",
    [
        BatchSampler(RandomSampler(range(9)), 2, False),
        BatchSampler(DistributedSampler(range(9), 2, 0), 2, False),
        BatchSampler(OfTheUser(range(9)), 2, False),
        Batches(SequentialSampler(range(9)), 2, False),
    ],
    ids=lambda sampler: type(sampler.sampler).__name__,
)
def test_what_draws_is_not_jumped_over(sampler):
    """It has to draw again what it drew, which is held against a checksum."""
    assert planning.jumped(sampler, 1) is None


def test_a_dataset_that_changed_its_length():
    """torch's error is raised where torch raises it."""
    data = list(range(10))
    inner = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    data.append(10)
    data.append(11)
    data.append(12)
    sampler = BatchSampler(inner, 2, False)
    with pytest.raises(Exception) as expected:
        list(sampler)
    with pytest.raises(type(expected.value), match="Number of"):
        list(planning.plan(sampler))


def change_length(sampler):
    sampler.data_source = range(3000)


def change_generator(sampler):
    sampler.generator = generator_of(2)


def take_generator_away(sampler):
    sampler.generator = None


@pytest.mark.parametrize("change", [change_length, change_generator, take_generator_away])
def test_a_sampler_that_is_changed_within_its_epoch(change):
    """What is drawn at the end is of the length and from the generator of the beginning."""
    states = []
    for begin in (iter, planning.plan):
        torch.manual_seed(8)
        generator = generator_of(1)
        sampler = BatchSampler(RandomSampler(range(100), generator=generator), 5, False)
        requests = begin(sampler)
        next(requests)
        change(sampler.sampler)
        for _ in requests:
            pass
        known = [generator, sampler.sampler.generator or generator, torch.default_generator]
        states.append([*map(state_of, known)])
    assert states[0] == states[1]


@pytest.mark.thorough
def test_a_torch_that_draws_otherwise_is_left_to_itself(run_program):
    """One look in each process decides; here torch draws a permutation backwards."""
    program = """
import torch
from torch.utils.data import BatchSampler, RandomSampler
drawn = RandomSampler.__iter__
RandomSampler.__iter__ = lambda self: reversed(list(drawn(self)))
from shmloader.order import planning
from tests.helpers.datasets import Computed
assert planning.plan(BatchSampler(RandomSampler(range(9)), 2, False)) is None
"""
    status, _, errors = run_program(program)

    assert 0 == status, errors


@pytest.mark.parametrize("kind", [BatchSampler, RandomSampler])
def test_a_sampler_that_is_patched_draws_by_itself(monkeypatch, kind):
    """Also if its own way of drawing was found to be as here before."""
    sampler = BatchSampler(RandomSampler(range(9)), 2, drop_last=False)
    assert planning.plan(sampler) is not None
    drawn = kind.__iter__
    monkeypatch.setattr(kind, "__iter__", lambda self: reversed(list(drawn(self))))

    assert planning.plan(sampler) is None


class Whole(list):
    """A dataset that takes a whole request."""

    def __getitems__(self, indices):
        assert type(indices) is list
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [list, Whole])
@pytest.mark.parametrize("seed_by", ["worker", "batch"])
def test_workers_get_lists_of_ints(kind, seed_by):
    """User code sees what it sees with torch, and nothing that is an array."""
    dataset = Subset(kind(range(10)), range(10))
    options = {"batch_size": 4, "num_workers": 1, "collate_fn": list, "seed_by": seed_by}
    with DataLoader(dataset, **options) as loader:
        batches = list(loader)
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == batches
    assert {int} == {type(index) for batch in batches for index in batch}


def test_indices_are_like_a_list():
    """What looks into an iterator finds numbers that compare, print and pickle."""
    first, second = Plan(lambda: numpy.arange(5), 3, False)

    assert (3, [0, 1, 2], [3, 4]) == (len(first), list(first), second.tolist())
    assert first == [0, 1, 2] != second
    assert [0, 1, 2] == pickle.loads(pickle.dumps(first))
    assert "Indices([3, 4])" == repr(second)


def test_an_error_of_a_draw_ends_the_plan():
    """As a generator that raised is over."""

    def draw():
        raise KeyboardInterrupt

    plan = Plan(draw, 2, False)
    with pytest.raises(KeyboardInterrupt):
        next(plan)
    assert [] == list(plan)


def test_indices_outlive_their_plan():
    """They keep what they point into."""
    plan = Plan(lambda: numpy.arange(1000) * 7, 10, False)
    kept = [next(plan) for _ in range(3)]
    del plan
    assert [list(range(10 * part * 7, 10 * (part + 1) * 7, 7)) for part in range(3)] == [
        each.tolist() for each in kept
    ]
    assert all(type(each) is Indices for each in kept)


def test_a_dataset_without_an_end():
    """Its indices are no array: that would be of 80 TB."""
    loader = DataLoader(Computed(10**13, int), batch_size=3, num_workers=1)
    assert next(iter(loader)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shuffle", [False, True])
def test_another_default_device(shuffle):
    """Where torch's samplers draw on another device, they do, whenever this torch is looked at."""
    inner = DistributedSampler(range(7), 2, 0, shuffle=shuffle)
    planning._draw_as_here.cache_clear()
    try:
        with torch.device("meta"):
            assert planning.plan(BatchSampler(inner, 2, drop_last=False)) is None
        assert planning.plan(BatchSampler(inner, 2, drop_last=False)) is not None
    finally:
        planning._draw_as_here.cache_clear()
