"""What a worker publishes of itself comes back as it was, or is refused."""

import random

import pytest

from shmloader.worker import snapshot
from shmloader.worker.snapshot import Position


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


@pytest.mark.parametrize(
    ("owner", "expected"),
    [(Stateful(), {"at": 3}), (OnlyTells(), None), (Declines(), None), ([], None)],
    ids=lambda value: type(value).__name__,
)
def test_state_needs_both_methods(owner, expected):
    """Only an object that can also take its state back is asked for it."""
    assert expected == snapshot.state_of(owner)
