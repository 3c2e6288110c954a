"""Actors of Ray and Ray Data: our loader is used, with torch's losses and Ray's rows."""

from __future__ import annotations

import json

import pytest

from .needs import needs
from .ranks import LONGEST_S, run
from .ray_sessions import ray_folder  # noqa: F401

needs("ray", "ray.data")

pytestmark = [pytest.mark.timeout(LONGEST_S), pytest.mark.usefixtures("ray_folder")]


def outcome_of(program, folder):
    """Run a program of this folder, and read what it wrote."""
    run(program, folder)
    return json.loads((folder / "outcome.json").read_text())


def test_loader_in_an_actor(tmp_path):
    """A loader in an actor trains as torch's under each start method, and ends with its actor."""
    outcome = outcome_of("ray_actors", tmp_path)
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


def test_ray_data_as_the_dataset(tmp_path):
    """Workers of ours read Ray Data's iterators, and its batches come in slots, epoch by epoch."""
    outcome = outcome_of("ray_sources", tmp_path)
    direct = outcome["direct"]

    assert 8 == len(direct)
    assert [direct, direct] == outcome["iterator"]["epochs"]
    for epoch in outcome["splits"]["epochs"]:
        rows = sorted(zip(by_column(epoch, "id"), by_column(epoch, "x"), strict=True))
        assert rows == sorted(zip(by_column(direct, "id"), by_column(direct, "x"), strict=True))
    for each in ("iterator", "splits"):
        assert outcome[each]["slots"], each
        assert (1, 0) == (outcome[each]["ours"], outcome[each]["torchs"]), each


def by_column(batches, name):
    return [value for batch in batches for value in batch[name]]
