"""What a worker publishes of itself comes back as it was, or is refused."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmloader.worker import snapshot
from shmloader.worker.snapshot import Position


@given(
    st.builds(
        Position,
        has_begun=st.booleans(),
        attempts=st.integers(0, 2**62),
        index=st.one_of(st.none(), st.lists(st.none(), max_size=3)),
        is_exhausted=st.booleans(),
        dataset=st.one_of(st.none(), st.dictionaries(st.text(), st.integers())),
        iterator=st.one_of(st.none(), st.binary(max_size=100)),
    )
)
def test_position_comes_back(position):
    """A snapshot holds the position that was taken."""
    assert position == snapshot.position_of(snapshot.take(position))


@pytest.mark.parametrize("read", [snapshot.position_of, snapshot.restore_random_states])
@pytest.mark.parametrize("place", [0, 3, 4, 100, -1])
def test_damaged_snapshot_is_not_loaded(read, place):
    """One wrong bit anywhere is an error, and the generators stay as they were."""
    damaged = bytearray(snapshot.take(Position()))
    damaged[place] ^= 1
    expected = random.getstate()

    with pytest.raises(ValueError, match="does not match its checksum"):
        read(bytes(damaged))
    assert expected == random.getstate()


@pytest.mark.parametrize("length", [0, 3, 4, 50])
def test_short_snapshot_is_not_loaded(length):
    """What is left of a snapshot that was cut off is an error."""
    with pytest.raises((ValueError, EOFError)):
        snapshot.position_of(snapshot.take(Position())[:length])


class Stateful:
    """An object with both methods."""

    def state_dict(self):
        return {"at": 3}

    def load_state_dict(self, state):
        """Nothing is restored here."""


class OnlyTells:
    """An object that can tell its state but not take it back."""

    def state_dict(self):
        raise AssertionError("it was asked")


class Declines(Stateful):
    """An object whose base class has the methods and whose own kind does not support them."""

    def state_dict(self):
        raise NotImplementedError


class Fails(Stateful):
    """An object that fails when it is asked."""

    def state_dict(self):
        raise KeyError("at")


@pytest.mark.parametrize(
    ("owner", "expected"),
    [(Stateful(), {"at": 3}), (OnlyTells(), None), (Declines(), None), ([], None)],
    ids=lambda value: type(value).__name__,
)
def test_state_needs_both_methods(owner, expected):
    """Only an object that can also take its state back is asked for it."""
    assert expected == snapshot.state_of(owner)


def test_errors_of_a_state_dict_are_the_users():
    """Any other error of state_dict() is raised."""
    with pytest.raises(KeyError):
        snapshot.state_of(Fails())
