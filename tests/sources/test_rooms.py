"""A feature is a room that can be deleted: without it everything else works."""

import os
import shutil

import pytest

import shmloader
from shmloader import exports
from tests.helpers.programs import ROOT
from tests.helpers.stage import run_file
from tests.sources import without_a_room

# Each room, and an expression that uses what is in it.
ROOMS = {
    "advice": "shmloader.DataLoader(range(4)).report()",
    "data": "from shmloader import cached",
    "views": "shmloader.DataLoader(range(4)).trace('trace.json')",
    "device": 'shmloader.DataLoader(range(4), device="cuda")',
    "pool": "from shmloader import Pool",
    "publishing": "from shmloader import subscribe",
    "autoscaling": 'shmloader.DataLoader(range(4), num_workers="auto")',
    "order/resuming": "shmloader.DataLoader(range(4), num_workers=1, resumable=True)",
}
LACKS = "needs the component shmloader/{room}, which this installation lacks"
PACKAGE = ROOT / "shmloader"
# Otherwise an editable installation finds the room where it still is.
SITE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in each.__module__]
"""


@pytest.fixture(params=ROOMS)
def room(request):
    """Give each room in turn."""
    return request.param


@pytest.fixture
def run_without(torch_alone, room, tmp_path):
    """Give what runs a script with a copy of the package that lacks the room."""
    copy = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copy)
    shutil.rmtree(copy / room)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return lambda script: run_file(torch_alone, tmp_path, SITE + script, PYTHONPATH=path)


@pytest.mark.core(every=8)
def test_what_is_left_is_imported_and_what_is_not_is_named(run_without, room, tmp_path):
    """All that the package exports is there, and the error of what is absent says which folder."""
    script = f"""
import shmloader
names = {{name: getattr(shmloader, name) for name in shmloader.__all__}}
print(shmloader.__file__)
print(*names)
try:
    {ROOMS[room]}
except ImportError as error:
    print(error)
shmloader.DataLoader(range(4), device=shmloader.Device("cpu", transform=len))
"""
    status, lines, errors = run_without(script)

    assert (0, "") == (status, errors)
    assert str(tmp_path / "shmloader/__init__.py") == lines[0]
    assert set(lines[1].split()) == {*shmloader.__all__} - {*exports._COMPONENTS.get(room, ())}
    assert LACKS.format(room=room) in lines[2]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("room", "command"),
    [("advice", ["tune", "json:loads"]), ("views", ["top"])],
    indirect=["room"],
)
def test_a_command_names_what_it_needs(run_without, room, command):
    """A command of an absent room ends with the folder's name, and without a traceback."""
    script = f"from shmloader.cli import main\nraise SystemExit(main({command}))"
    status, lines, errors = run_without(script)

    assert (1, []) == (status, lines)
    assert errors.splitlines()[-1].startswith(f"shmloader {command[0]}: ")
    assert LACKS.format(room=room) in errors
    assert "Traceback" not in errors


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_everything_else_works(run_without):
    """Batches are torch's, and what is ours beyond them does what it says."""
    script = """
from tests.sources import without_a_room
if __name__ == "__main__":
    for name, check in without_a_room.CHECKS.items():
        print(name, check(), flush=True)
"""
    status, lines, errors = run_without(script)

    assert (0, [f"{name} None" for name in without_a_room.CHECKS]) == (status, lines), errors
