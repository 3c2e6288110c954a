"""States that were saved earlier, by each version of their format, are gone on with."""

import pytest

from shmloader.order.resuming import states
from tests.resume import earlier

FILES = sorted(earlier.FOLDER.glob("states_*.json"))
ROWS = [(path, name) for path in FILES for name in earlier.read(path)]


def test_the_version_of_now_has_a_file():
    """So the next version cannot be made without states of this one to read."""
    versions = {int(path.stem.removeprefix("states_")) for path in FILES}

    assert states.VERSION in versions


@pytest.mark.parametrize(
    ("path", "name"), ROWS, ids=[f"{path.stem}, {name}" for path, name in ROWS]
)
def test_the_same_batches_come(path, name):
    """The rest of that epoch, and the next one, with the draws of then."""
    state, epochs = earlier.read(path)[name]

    assert epochs == earlier.gone_on(name, state)
