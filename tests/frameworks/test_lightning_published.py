"""Lightning's Trainer trains on what another process publishes as on a loader of its own."""

from __future__ import annotations

import tempfile

import pytest
import torch

import shmloader
from tests.publish.actors import NAME, Actor

from .needs import needs
from .training import SEED, WORKERS, Pictures, seed

lightning = needs("lightning", "lightning.pytorch.utilities")

from .lightning_modules import Module, quiet_trainer  # noqa: E402


def loader():
    """Make the loader, which draws from a generator of its own: others draw in the Trainer."""
    order = torch.Generator()
    order.manual_seed(SEED)
    return shmloader.DataLoader(Pictures(), shuffle=True, generator=order, **WORKERS)


def fit(batches):
    """Train two epochs. Returns every loss."""
    seed()
    module = Module()
    quiet_trainer().fit(module, batches)
    return module.losses


@pytest.fixture
def publisher(monkeypatch):
    """Publish the loader in another process."""

    def publishes(say, hear):
        shmloader.publish(loader(), NAME, subscribers=1)
        return "over"

    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        actor = Actor(publishes)
        yield actor
        actor.end()


def test_fit_on_a_subscription(publisher):
    """Both epochs have the losses of a loader of its own, and the publisher ends with them."""
    with shmloader.subscribe(NAME) as batches:
        found = fit(batches)

    assert publisher.hear() == "over"
    assert fit(loader()) == found
    assert 24 == len(found)
