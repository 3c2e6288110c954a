"""What the tests here share."""

import pytest

from tests.simulation.stage import Stage, build


@pytest.fixture(scope="module")
def stage():
    """Build the package with steps, and start the program that plays in it."""
    build()
    stage = Stage()
    yield stage
    stage.close()
