"""A run goes on through deaths: of the whole of it, of a worker that was resumed, of a replay."""

import time

import pytest

from tests.helpers.datasets import Iterated
from tests.helpers.mortal import Mortal, MortalStream, Script
from tests.resume import soak
from tests.resume.interrupted import gone_on, left, opened


@pytest.mark.thorough
def test_trainings_that_are_killed_go_on(capsys):
    """The soak itself, for a few kills."""
    assert 0 == soak.main(["--kills", "6", "--seed", "2"])

    assert "48 batches" in capsys.readouterr().out


@pytest.mark.parametrize("seed_by", ["worker", "batch"])
def test_a_resumed_worker_that_dies_is_replaced(tmp_path, seed_by):
    """Its replacement goes on from the state, even if the worker had answered nothing since."""
    options = {"seed_by": seed_by, "resumable": True, "restarts": 3, "num_workers": 2}
    options |= {"shuffle": False}
    state, expected = left(opened(Mortal(), options), 3)
    deaths = Script(tmp_path, "item 9", "item 14")

    assert expected == gone_on(opened(Mortal(deaths), options), state)
    assert [] == deaths.left


def slow():
    """Take a moment for each sample."""
    for index in range(12):
        time.sleep(0.06)
        yield index


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [0, 1])
def test_fetching_again_may_take_longer_than_a_timeout(restarts):
    """The timeout is for a batch, not for those that are fetched again before it."""
    options = {"num_workers": 1, "timeout": 0.4, "batch_size": 1, "restarts": restarts}
    state, _ = left(opened(Iterated(slow), options), 10)

    assert [[10], [11]] == gone_on(opened(Iterated(slow), options), state)


def hung_in_replay(tmp_path, restarts):
    """Returns the rest of an epoch, and that of a run whose worker 0 hangs as it fetches again."""
    script = Script(tmp_path, later=("item 0.4",), way="SIGSTOP")
    options = {"num_workers": 2, "timeout": 2, "restarts": restarts}
    state, expected = left(opened(MortalStream(script), options), 6)
    script.arm()
    return expected, gone_on(opened(MortalStream(script), options), state)


@pytest.mark.thorough
def test_a_worker_that_hangs_while_it_fetches_again_is_replaced(tmp_path):
    """With a timeout it is killed as any other, and the next one fetches from the beginning."""
    expected, actual = hung_in_replay(tmp_path, restarts=1)

    assert expected == actual


@pytest.mark.thorough
def test_a_worker_that_hangs_while_it_fetches_again_is_an_error(tmp_path):
    """Without restarts it is torch's, as for any other."""
    with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 2 seconds$"):
        hung_in_replay(tmp_path, restarts=0)
