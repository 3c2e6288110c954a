"""Values stay whole in whatever life they and their source have."""

import functools
import gc
import signal

import pytest

from tests.conformance import made
from tests.conformance.sources import get
from tests.helpers.copies import WaitingChild
from tests.helpers.threads import on_a_thread, on_threads

pytestmark = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")

MANY = 24


def makes(count=MANY, make=made.numbered):
    return [functools.partial(make, index) for index in range(count)]


def are_in_order(values):
    values = list(values)
    return MANY == len(values) and all(map(made.is_numbered, values, range(MANY)))


def test_an_epoch_left_half_way_costs_nothing(kind, source):
    """What is left of an epoch that was left half-way does not come later."""
    values = source.many(makes())
    next(values)
    del values
    gc.collect()
    assert are_in_order(source.many(makes()))


def test_values_live_on_when_the_source_is_closed(kind, fresh):
    """Values are read and written after the end of what handed them out."""
    values = list(fresh.many(makes()))
    fresh.close()
    del fresh
    gc.collect()
    assert are_in_order(values)
    values[3]["tensor"].zero_()
    assert made.is_numbered(values[2], 2)


def test_a_value_may_live_in_a_cycle(kind, source):
    """A value in a reference cycle is whole until it is collected."""
    for _ in range(3):
        for index, value in enumerate(source.many(makes())):
            value["itself"] = value
            assert made.is_numbered(_without_itself(value), index)
    del value
    gc.collect()
    assert are_in_order(source.many(makes()))


def _without_itself(value):
    return {name: part for name, part in value.items() if name != "itself"}


def test_a_forked_child_reads_what_it_inherited(kind, source):
    """A forked child reads the values that it inherited, whatever its parent does."""
    values = source.many(makes())
    inherited = [next(values) for _ in range(3)]
    child = WaitingChild(are_the_first, inherited)
    del inherited
    rest = list(values)
    assert "True" == child.end()
    assert all(map(made.is_numbered, rest, range(3, MANY)))
    del rest


def are_the_first(values):
    return all(map(made.is_numbered, values, range(3)))


@pytest.mark.core(first=1)
def test_three_threads_share_an_epoch(kind, source):
    """Of three threads that share an epoch each gets values that no other gets."""
    values, taken = source.many(makes(make=made.in_a_moment)), []

    def take():
        try:
            for value in values:
                taken.append(value)
        except ValueError as error:  # a generator of the standard library's
            assert "already executing" in str(error)

    on_threads(*[take] * 3)
    order = sorted(taken, key=lambda value: value["texts"][1])
    assert are_in_order(order)


def test_a_source_is_used_on_another_thread(kind, source):
    """Values are taken on one thread and dropped on another."""
    held = on_a_thread(lambda: list(source.many(makes())))
    on_a_thread(held.pop)
    assert all(map(made.is_numbered, held, range(MANY)))


# Python can but report the one that fell into a finalizer.
@pytest.mark.core(first=1)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_handler_that_raises_loses_no_source(kind, fresh):
    """An error that a signal's handler raises leaves the loop, and the next epoch is whole.

    A source of its own: an interrupt between a publisher's order and the loop leaves an epoch over.
    """

    def interrupt(*_):
        if asked:
            raise InterruptedError("by the handler")

    assert are_in_order(fresh.many(makes()))
    asked = [True]
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)  # again where the first fell into a finalizer
    try:
        with pytest.raises(InterruptedError):
            while True:
                list(fresh.many(makes(make=made.in_a_moment)))
    finally:
        asked.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert are_in_order(fresh.many(makes()))


def test_a_source_is_used_in_a_finalizer(kind, source):
    """A finalizer takes a value."""
    found = []

    class Last:
        def __del__(self):
            found.append(get(source, functools.partial(made.numbered, 3)))

    for _ in source.many(makes(4)):
        pass
    Last()
    assert made.is_numbered(found[0], 3)


@pytest.mark.core(first=1)
@pytest.mark.parametrize("size", ["deep", "many", "large"])
def test_sizes_have_no_limit_that_is_silent(kind, fresh, size):
    """A value of 400 levels, of 20,000 tensors or of 64 MB arrives whole."""
    make = {
        "deep": functools.partial(made.nested, 400),
        "many": functools.partial(made.many_tensors, 20_000),
        "large": functools.partial(made.zeros, 64),
    }[size]
    value = get(fresh, make)
    if size == "deep":
        for _ in range(400):
            (value,) = value
        assert [0, 1, 2] == value.tolist()
    elif size == "many":
        assert [*range(20_000)] == [int(each[0]) for each in value]
    else:
        assert (64 << 18, 0) == (len(value), int(value.count_nonzero()))


def test_much_too_deep_is_an_error(kind, fresh):
    """A value of 10,000 levels is an error, and the next one comes."""
    with pytest.raises(Exception) as raised:
        get(fresh, functools.partial(made.nested, 10_000))
    assert str(raised.value)
    assert made.is_numbered(get(fresh, functools.partial(made.numbered, 1)), 1)
