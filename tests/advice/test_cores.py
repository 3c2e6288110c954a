"""How many cores a trainer may count on: its affinity, its group's share, its part as a rank."""

import math
import os

import pytest

from shmloader import DataLoader
from shmloader.processes import scheduling
from shmloader.stats.words import cores as in_words


@pytest.mark.parametrize(
    ("own", "parents", "share", "ranks", "expected"),
    [
        pytest.param(8, 8, math.inf, None, 8, id="alone"),
        pytest.param(8, 64, 2.5, "1", 2.5, id="in a group"),
        pytest.param(8, 8, 0.5, None, 0.5, id="in a small group"),
        pytest.param(8, 8, math.inf, "4", 2, id="of four"),
        pytest.param(2, 2, math.inf, "4", 1, id="of more ranks than cores"),
        pytest.param(8, 8, 6.0, "4", 1.5, id="of four in a group"),
        pytest.param(8, 8, 0.5, "4", 0.5, id="of four in a small group"),
        pytest.param(2, 8, math.inf, "4", 2, id="bound to its part"),
        pytest.param(4, 8, math.inf, "4", 2, id="bound to a node with another"),
        pytest.param(8, None, math.inf, "4", 2, id="with a parent that is gone"),
        pytest.param(8, 8, math.inf, "0", 8, id="none"),
        pytest.param(8, 8, math.inf, "many", 8, id="no number"),
    ],
)
def test_ranks_share_the_cores(monkeypatch, own, parents, share, ranks, expected):
    """Each rank of torchrun's has an equal part, unless it was bound to one already."""

    def affinity(process):
        if process == 0:
            return set(range(own))
        if parents is None:
            raise ProcessLookupError
        return set(range(parents))

    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    monkeypatch.setattr(scheduling, "least_share", lambda *_: share)
    if ranks is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)

    assert expected == scheduling.cores()


def test_it_is_said_in_words(monkeypatch):
    """A report of a rank speaks of its own cores; a loader alone, of cores."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with DataLoader(range(8), num_workers=2) as loader:
        setting = loader._service.setting(loader, loader._options())

    assert 2 == setting.ranks
    assert ["1 core", "2.5 cores"] == [in_words(1.0), in_words(2.5)]
    assert ["this rank's 1 core", "this rank's 4 cores"] == [in_words(1.0, 2), in_words(4.0, 8)]
