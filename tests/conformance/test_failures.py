"""What a user's object raises belongs to its own value, which is no value then."""

import functools
import itertools
import signal

import pytest

from shmloader import UnsendableBatch
from tests.conformance import made
from tests.conformance.kinds import executor
from tests.conformance.sources import get, outcome

pytestmark = [
    pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def goes_on(source):
    """Returns True if the source hands out the next value, False if it says that it has ended."""
    try:
        return made.is_numbered(get(source, functools.partial(made.numbered, 8)), 8)
    except Exception:
        return False


CASES = [
    *itertools.product(("made", "pickled", "unpickled"), made.ERRORS),
    *itertools.product(("reduced", "hashed"), (ValueError, made.Odd)),
]


@pytest.mark.core(values=1)
@pytest.mark.filterwarnings("ignore:.*fetches sample")
@pytest.mark.parametrize("moment, error", CASES)
def test_an_object_that_raises_fails_its_value(kind, fresh, moment, error):
    """An object that raises as it is made, pickled or unpickled makes its own value an error.

    It is that very error, or names the part that cannot be sent, and the next value comes. What
    cannot be kept in a cache is the sample that was fetched.
    """
    found = outcome(lambda: get(fresh, functools.partial(made.raising, moment, error)))
    expected = [error, *[UnsendableBatch] * (moment in ("reduced", "pickled"))]
    if moment == "made" and not issubclass(error, Exception):
        expected.append(RuntimeError)  # it has ended a loader's worker, as torch's
    is_kept_out = kind.name == "cached" and moment != "made" and issubclass(error, Exception)
    assert type(found) is dict if is_kept_out else found in expected, found
    ends = found is RuntimeError or "values_come_after_one_that_failed" in kind.differs
    assert ends or goes_on(fresh)


@pytest.mark.core(values=1)
@pytest.mark.parametrize("moment", made.MOMENTS)
def test_values_come_after_one_that_failed(kind, fresh, moment):
    """After an error of one value the next one comes."""
    outcome(lambda: get(fresh, functools.partial(made.raising, moment, ValueError)))
    assert goes_on(fresh)


@pytest.mark.core(values=1)
@pytest.mark.parametrize("shape", made.SHAPES_OF_ERRORS)
def test_an_error_of_any_shape_arrives(kind, fresh, shape):
    """An error that cannot be pickled, read, said or changed arrives as an error."""
    found = outcome(lambda: get(fresh, made.SHAPES_OF_ERRORS[shape]))
    assert isinstance(found, type) and issubclass(found, BaseException), found
    # What leaves a loader's worker that is no Exception ends it, as torch's.
    assert kind.standard is not executor or goes_on(fresh)


@pytest.mark.core(values=1)
@pytest.mark.parametrize("error", made.ERRORS)
def test_no_method_of_an_object_is_called(kind, source, error):
    """No object is compared, hashed, printed, counted or iterated on its way."""
    first, tensor, named = get(source, functools.partial(made.touchy, error))
    assert error is first.__dict__["error"] is named["key"].__dict__["error"]
    assert 4999 == int(tensor[-1])


def test_an_object_may_raise_as_it_is_deleted(kind, source):
    """An object that raises as it is deleted costs no value."""
    value = get(source, made.dying)
    assert 4999 == int(value[1][-1])
    value.clear()
    assert goes_on(source)


@pytest.mark.core(values=1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_death_is_an_error(kind, fresh, number):
    """The death of the process that makes a value is a RuntimeError."""
    with pytest.raises(RuntimeError):
        get(fresh, functools.partial(made.end_this_process, number))


@pytest.mark.parametrize("end", made.ENDS_OF_A_CHILD)
def test_a_child_that_comes_back_is_no_worker(kind, fresh, end):
    """A child that is forked as a value is made, and does not end there, ends behind it."""
    assert end == get(fresh, functools.partial(made.end_of_a_child, end))
    assert goes_on(fresh)


@pytest.mark.core(first=1)
@pytest.mark.filterwarnings("ignore::shmloader.RestartWarning")
def test_a_death_is_healed(kind, tmp_path):
    """With `restarts` a death costs no value, and the values that came before it stay."""
    source = kind.open(restarts=1)
    marker = str(tmp_path / "has died")
    makes = [functools.partial(made.numbered, index) for index in range(6)]
    makes[3:3] = [functools.partial(made.end_this_process_once, marker)]
    values = list(source.many(makes))
    source.close()
    assert marker == values.pop(3)
    assert all(map(made.is_numbered, values, range(6)))
