"""A training of `python -m bench real` with workers that are started in each way."""

from functools import partial

import pytest

from bench.driver import alone
from bench.real.command import mistake
from bench.real.run import STARTS, run

STEPS = 6


@pytest.fixture(scope="module")
def torchs(tmp_path_factory):
    """What torch's loader trains with forked workers."""
    return train("torch", "fork", tmp_path_factory.mktemp("training"))


def train(loader, start, folder):
    return alone(partial(run, "text", loader, STEPS, str(folder), start))


@pytest.mark.thorough
@pytest.mark.parametrize("start", STARTS)
def test_losses(torchs, tmp_path, start):
    """Every loss of two epochs is the same, and each batch was ours."""
    found = train("ours", start, tmp_path)

    assert 2 * STEPS == len(torchs["losses"])
    assert None is mistake(torchs, found)
