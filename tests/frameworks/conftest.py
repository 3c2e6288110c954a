"""Training twice, with torch's loader and with ours."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import shmloader

from .training import seed
from .ways import INSTALL, TORCH, WAYS, Made, Way, spied

HERE = Path(__file__).parent


@dataclass
class Trial:
    """One training: what came out, and whose iterators it made."""

    losses: list[Any]
    made: Made


def tried(way: Way, train: Callable[[Way], list[Any]]) -> Trial:
    seed()
    with way.active(), spied() as made:
        losses = train(way)
    gc.collect()  # what a framework's cycles hold of a loader goes before the next training
    return Trial(losses, made)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Train with one thread: others would wait for a core in a loop while workers need it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    """Each way to train with our loader."""
    return request.param


@pytest.fixture
def compare() -> Callable[..., Trial]:
    """Train in a way, and demand torch's losses and our iterator."""

    def compare(train: Callable[[Way], list[Any]], way: Way = INSTALL) -> Trial:
        """
        Train with torch's loader, or one that has the same losses, then with ours.

        Args:
            train: Trains from the seeds that were set, and returns what must be equal, one item
                for each step.
            way: How it gets our loader.
        """
        like = way.like or TORCH
        theirs, ours = tried(like, train), tried(way, train)

        assert theirs.losses
        assert theirs.losses == ours.losses
        assert ours.made.ours > 0
        assert ours.made.torchs == 0
        if like is TORCH:
            assert theirs.made.ours == 0
        return ours

    return compare


def assert_left_alone(opened: Callable[[], Any], batches: int) -> None:
    """
    Check that install() leaves a loader alone that makes iterators of its own, which resume.

    wrap() would lose their state: the error names the class and the way out.
    """

    def resumed(_: Way) -> list[Any]:
        """Take five batches, and go on with another loader from its state."""
        loader = opened()
        first = iter(loader)
        begun = [next(first)[1].tolist() for _ in range(5)]
        state = loader.state_dict()
        del first
        again = opened()
        again.load_state_dict(state)
        return [*begun, *(labels.tolist() for _, labels in again)]

    theirs, ours = tried(TORCH, resumed), tried(INSTALL, resumed)

    assert batches == len(theirs.losses)
    assert theirs.losses == ours.losses
    assert 0 == ours.made.ours
    with pytest.raises(TypeError, match="makes in _get_iterator"):
        shmloader.wrap(opened())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # A framework's warnings are its own affair; ours are not.
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore",
                    "error::shmloader.RetentionWarning",
                    "error::shmloader.RestartWarning",
                )
            )
