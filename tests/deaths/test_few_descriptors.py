"""Few descriptors: right batches or one error with the numbers, no hang."""

import re

import pytest

from tests.helpers.stage import Play, staged

HEAD = """\
import os, resource, signal, warnings
import torch
from shmloader import DataLoader, RestartWarning
from tests.helpers.healing import open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script

# So that nothing is imported later, when no file can be opened.
import shmloader.trainer.iterator, shmloader.worker.replacement

ALLOWED = 200
warnings.simplefilter("ignore", RestartWarning)


def limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (ALLOWED, hard))


class Doomed(Mortal):
    def __getitem__(self, index):
        if index == self.doom and not os.path.exists("died"):
            os.mkdir("died")  # which needs no descriptor
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def take_all():
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken
"""


stage = staged(HEAD)


# Ten are enough for a loader and its replacements: each number up to twice as many, and then a few.
@pytest.mark.core(every=9)
@pytest.mark.parametrize("doom", [None, 9])
@pytest.mark.parametrize("left", [*range(20), 30, 40])
def test_few_are_left(stage, tmp_path, left, doom):
    """However few are left when iter() begins, and if a worker dies, it ends, and says why."""
    script = f"""
os.chdir({str(tmp_path)!r})
(expected,) = undisturbed(Mortal(Script(".")))
doomed = Doomed(Script("."))
doomed.doom = {doom}
with open_loader(DataLoader, doomed, restarts=2) as loader:
    limit()
    taken = take_all()
    for _ in range({left}):
        os.close(taken.pop())
    try:
        batches = [batch.tolist() for batch in loader]
        print("right" if batches == expected else batches)
    except Exception as error:
        print(type(error).__name__, error)
    for descriptor in taken:
        os.close(descriptor)
"""
    with Play(stage, tmp_path, script) as program:
        (line,) = program.lines()
        assert (0, set()) == (program.wait(), program.left())
        numbers = r"RLIMIT_NOFILE allows this process 200 open files \(hard limit \d+\)"
        assert re.match(f"right|(OSError|RuntimeError) .*{numbers}", line)
        # A worker that cannot begin says so, as with torch; no other process does.
        assert "processes/nursery" not in program.errors
