"""The trainings of `make bench-real`, a few steps of each."""

from __future__ import annotations

from itertools import islice

import pytest

from bench.real.training import train
from bench.real.trainings import TRAININGS, make

from .training import seed

STEPS = 4


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with the pictures of the trainings that want some."""
    pytest.importorskip("skimage")
    from bench.real import photographs

    folder = tmp_path_factory.mktemp("pictures")
    photographs.write(folder)
    return folder


@pytest.fixture(params=TRAININGS)
def name(request):
    """Each training whose packages are installed."""
    reason = TRAININGS[request.param].why_not()
    if reason:
        pytest.skip(f"{request.param} {reason}")
    return request.param


def test_training(compare, name, pictures):
    """Each training has the same loss in every step, also in a second epoch of its workers."""
    distribution = next(iter(TRAININGS[name].packages.values()), "torch")

    def epochs(_):
        training = make(name, pictures, STEPS)
        return [loss for _ in range(2) for loss in train(training)["losses"]]

    ours = compare(distribution, f"bench real: {name}", epochs)

    assert 2 * STEPS == len(ours.losses)
    assert 1 == ours.made.ours  # the workers of the first epoch


def test_losses_tell_batches(name, pictures):
    """The same net has another loss for another batch, so equal losses say something."""
    seed()
    training = make(name, pictures, STEPS)
    first, second = islice(training.loader, 2)

    assert training.loss(training.net, first) != training.loss(training.net, second)
