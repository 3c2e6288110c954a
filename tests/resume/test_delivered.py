"""The core of a state: which batches were delivered, and a checksum that tells other indices."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import arange

from shmloader.core import Delivered, pack_request, replay
from shmloader.core import Plan as _Plan

COUNT = 12


def deliver(made, tasks, index_of=lambda number: [number, number + 1]):
    """Draw all, and hand out some."""
    for task in range(COUNT):
        made.draw(task, index_of(made.number_of(task)))
    for task in tasks:
        made.take(task, 0, None)
        made.hand_out()
    return made


@given(st.permutations(range(COUNT)), st.integers(0, COUNT))
def test_any_order_has_the_same_sum(order, count):
    """What is missing is known in any order; the checksum is that of the set."""
    made = deliver(Delivered(1, True), order[:count])
    same = deliver(Delivered(1, True), sorted(order[:count]))
    high = max(order[:count], default=-1) + 1

    assert (count, high) == (made.count, made.high)
    assert sorted(set(range(high)) - set(order[:count])) == made.missing()
    assert made.low == next(n for n in range(COUNT + 1) if n not in order[:count])
    assert same.checksum == made.checksum


def described(made):
    names = ("count", "low", "high", "last_worker", "sampler", "sampler_at", "checksum")
    lists = [*made.by_worker], [*made.snapshots], made.missing()
    return [getattr(made, name) for name in names], lists


@given(
    st.permutations(range(COUNT)),
    st.integers(0, COUNT),
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=COUNT, max_size=COUNT),
    st.booleans(),
)
def test_before_the_last(order, count, answers, is_numbered):
    """What it was before the last delivery is known, and asking changes nothing."""
    made = Delivered(3, is_numbered)
    made.start(b"0")
    expected = described(made)
    for task in range(COUNT):
        made.draw(task, [task], b"%d" % (task + 1))
    for task, (worker, publishes) in zip(order[:count], answers, strict=False):
        expected = described(made)
        made.take(task, worker, b"of %d" % task if publishes else None)
        made.hand_out()
    now = described(made)

    assert expected == described(made.before())
    assert now == described(made)


@given(st.permutations(range(COUNT)), st.integers(0, COUNT))
def test_the_rest_of_an_epoch_adds_up(order, count):
    """A run that goes on with what is missing ends with the checksum of a whole one."""
    first = deliver(Delivered(1, True), order[:count])
    again = Delivered(1, True, gaps=first.missing(), base=first.high)
    again.trust(first.checksum)
    rest = COUNT - count
    assert sorted(set(range(COUNT)) - set(order[:count])) == [
        again.number_of(task) for task in range(rest)
    ]
    for task in range(rest):
        number = again.number_of(task)
        again.draw(task, [number, number + 1])
        again.take(task, 0, None)
        again.hand_out()

    whole = deliver(Delivered(1, True), range(COUNT))
    assert (whole.checksum, COUNT, COUNT) == (again.checksum, again.low, again.count)


@pytest.mark.parametrize(
    "other", [[[2, 1]], [[1, 3]], [[1]], [[1, 2], [5]], [("a", 1)], [1], [None]], ids=str
)
def test_other_indices_have_another_sum(other):
    """Another order, number or kind of indices shows."""

    def total(requests):
        made = Delivered(1, True)
        for task, request in enumerate(requests):
            made.draw(task, request)
            made.take(task, 0, None)
            made.hand_out()
        return made.checksum

    assert total([[1, 2]]) != total(other)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.data())
def test_a_packed_request_is_the_list(numbers, data):
    """Its numbers and its checksum are those of the list."""
    packed = pack_request(list(numbers))
    sums = [replay(iter([each]), 0, 1, set(), []) for each in (packed, list(numbers))]

    assert list(numbers) == packed.tolist()
    assert sums[0] == sums[1]


@pytest.mark.parametrize("request_", [[], [2**63], [1, 1.0], [True], (1, 2), 3, None], ids=str)
def test_what_is_no_list_of_ints_is_left(request_):
    """Its type reaches the dataset as it was drawn."""
    assert request_ is pack_request(request_)


def test_what_is_lost_to_an_interrupt_is_missing():
    """A batch that was in hand and not handed out is drawn again."""
    made = deliver(Delivered(1, True), [0])
    made.take(1, 0, None)
    made.put_back()
    made.take(2, 0, None)
    made.hand_out()

    assert ([1], 1, 3) == (made.missing(), made.low, made.high)


@pytest.mark.parametrize("requests", range(6))
def test_a_plan_skips_to_where_it_would_have_come(requests):
    """Also behind its end."""

    def plan() -> Iterator:
        return _Plan(lambda: arange(10), 3, False)

    skipped = plan()
    skipped.skip(requests)

    assert [each.tolist() for each in plan()][requests:] == [each.tolist() for each in skipped]


def test_states_of_a_sampler_follow_what_was_delivered():
    """The state is that behind the last draw below which all was delivered."""
    made = Delivered(1, True)
    made.start(b"begin")
    for task in range(4):
        made.draw(task, [task], b"after %d" % task)
    seen = []
    for task in (1, 0, 3, 2):
        made.take(task, 0, None)
        made.hand_out()
        seen.append((made.sampler, made.sampler_at))

    assert [(b"begin", 0), (b"after 1", 2), (b"after 1", 2), (b"after 3", 4)] == seen
