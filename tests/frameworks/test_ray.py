"""Actors of Ray: our loader is used, with torch's losses, and ends with its actor."""

from __future__ import annotations

import json

import pytest

from .needs import needs
from .ranks import LONGEST_S, run
from .ray_sessions import ray_folder  # noqa: F401

needs("ray")

pytestmark = [pytest.mark.timeout(LONGEST_S), pytest.mark.usefixtures("ray_folder")]


def test_loader_in_an_actor(tmp_path):
    """A loader in an actor trains as torch's under each start method, and ends with its actor."""
    run("ray_actors", tmp_path)
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    trained = outcome["trained"]
    torchs = trained.pop("torch")

    assert (0, 1) == (torchs["ours"], torchs["torchs"])
    assert ["fork", "forkserver", "spawn"] == sorted(trained)
    for method, ours in trained.items():
        assert (1, 0) == (ours["ours"], ours["torchs"]), method
        assert torchs["losses"] == ours["losses"], method
    for method, killed in outcome["killed"].items():
        assert killed["processes"] >= 4, method  # the actor, its nursery, two workers
        assert (0, []) == (killed["left"], killed["files"]), method
