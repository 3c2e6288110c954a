"""Actors that are ended with the test, and meet in a folder of its own."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.publish.actors import Actor


@pytest.fixture(autouse=True)
def meeting_folder(monkeypatch, tmp_path):
    """Have publishers listen in a folder of this test's; its path is shorter than tmp_path's."""
    folder = tempfile.mkdtemp(prefix="p", dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def play():
    """Give what starts an actor."""
    actors = []

    def start(part, **arguments):
        actors.append(Actor(part, **arguments))
        return actors[-1]

    yield start
    for actor in actors:
        actor.end()


def pytest_collection_modifyitems(items):
    """On a machine that others use, anybody may be late."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*all .*wait for the "))
