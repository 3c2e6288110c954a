"""The kernel is offered a worker when memory is short, and never the trainer first."""

import os

import pytest

from shmloader import DataLoader, Pool
from shmloader.processes import victims
from tests.helpers.datasets import Computed

pytestmark = pytest.mark.skipif(victims.own_score() is None, reason="/proc says no oom_score_adj")


def score_of(pid="self"):
    with open(f"/proc/{pid}/oom_score_adj") as file:
        return int(file.read())


def score(index=0):
    return score_of()


def score_or_die(index):
    """Kill the worker that is asked first, once it is the only one left to be asked."""
    if score_or_die.first == os.getppid():
        os.kill(os.getpid(), 9)
    return score_of()


score_or_die.first = 0


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_go_before_the_trainer(method):
    """Those of a loader and of a pool have more by the same, however they start."""
    own = score_of()
    expected = {min(own + 500, 1000)}
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": method}

    assert expected == {int(each) for each in DataLoader(Computed(4, score), **options)}
    with Pool(2, method) as pool:
        assert expected == {*pool.map(score, range(4))}
    assert own == score_of()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::shmloader.RestartWarning")
def test_replacements_and_the_nursery_go_too():
    """By no more than the first workers, though a nursery that has more forks them."""
    score_or_die.first = os.getpid()
    loader = DataLoader(Computed(4, score_or_die), batch_size=None, num_workers=1, restarts=1)
    batches = iter(loader)
    expected = min(score_of() + 500, 1000)

    assert expected == score_of(batches._running.processes.mother.process.pid)
    assert {expected} == {int(each) for each in batches}


@pytest.mark.parametrize("path", ["/nowhere", "/proc/version"])
def test_where_it_cannot_be_read_nothing_happens(path, monkeypatch):
    """There is no error, and the trainer says nothing of its own."""
    monkeypatch.setattr(victims, "_PATH", path)

    assert victims.own_score() is None
    victims.volunteer(0)


def test_where_it_cannot_be_written_nothing_happens(tmp_path, monkeypatch):
    """Such as in a container whose /proc is read-only."""
    file = tmp_path / "score"
    file.write_text("3\n")
    monkeypatch.setattr(victims, "_PATH", str(file))
    victims.volunteer(-600)
    assert 3 == victims.own_score()  # never less than it has
    victims.volunteer(700)
    assert 1000 == victims.own_score()
