"""The core of a state: which batches were delivered, and a checksum that tells other indices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmloader.core import Delivered, pack_request, replay

COUNT = 12


def deliver(made, tasks, index_of=lambda number: [number, number + 1]):
    """Draw all, and hand out some."""
    for task in range(max(COUNT, len(tasks))):
        made.draw(task, index_of(made.number_of(task)))
    for task in tasks:
        made.take(task, 0, None).hand_out()
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
    names = ("count", "low", "high", "last_worker", "sampler", "sampler_at", "sampler_sum")
    names += ("checksum",)
    lists = [*made.by_worker], [*made.snapshots], made.missing()
    return [getattr(made, name) for name in names], lists


@pytest.mark.thorough
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
        made.take(task, worker, b"of %d" % task if publishes else None).hand_out()
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
        again.take(task, 0, None).hand_out()

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
            made.take(task, 0, None).hand_out()
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


@pytest.mark.thorough
@given(st.permutations(range(COUNT)), st.integers(0, COUNT), st.sets(st.integers(0, COUNT)))
def test_states_of_a_sampler_follow_what_was_delivered(order, count, noted):
    """It is the last one below which all was delivered, with the checksum of what it drew."""
    made, began = Delivered(1, True), 0
    made.start(b"0")
    for _ in range(2):  # the second run is given first what the first one drew and was not given
        gaps, first = made.missing(), made.high
        again = Delivered(1, True, gaps=gaps, base=first)
        again.start(made.sampler, made.sampler_at, made.sampler_sum)
        again.trust(made.checksum)
        for task in range(COUNT):
            number = again.number_of(task)
            again.draw(task, [number], b"%d" % (number + 1) if number in noted else None)
        for task in order[:count]:
            again.take(task, 0, None).hand_out()
        # What was a gap was drawn before the sampler was behind all of them.
        began = max([began, *(n + 1 for n in noted if first <= n < again.low)])
        whole = deliver(Delivered(1, True), range(began), lambda number: [number])

        assert (b"%d" % began, began) == (again.sampler, again.sampler_at)
        assert whole.checksum == again.sampler_sum
        made = again
