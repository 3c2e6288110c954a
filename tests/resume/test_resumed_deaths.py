"""A run goes on through deaths: of the whole of it, of a worker that was resumed, of a replay."""

import time

import pytest
from torch.utils.data import IterableDataset

from shmloader import DataLoader, RestartWarning
from tests.helpers.mortal import MortalStream, Script
from tests.order.scripted import Scripted
from tests.resume import soak
from tests.resume.interrupted import BATCH, drawn, generator_of, opened, plain, quiet


@pytest.mark.thorough
def test_trainings_that_are_killed_go_on(capsys):
    """The soak itself, for a few kills."""
    assert 0 == soak.main(["--kills", "6", "--seed", "2"])

    assert "48 batches" in capsys.readouterr().out


class Mortal(Scripted):
    """Samples of draws, of a worker that dies by a script."""

    count = 23

    def __getitem__(self, index):
        self.pass_by(f"item {index}")
        return [index, *drawn()]


@pytest.mark.parametrize("seed_by", ["worker", "batch"])
def test_a_resumed_worker_that_dies_is_replaced(tmp_path, seed_by):
    """Its replacement goes on from the state, even if the worker had answered nothing since."""
    options = {"seed_by": seed_by, "resumable": True, "restarts": 3, "num_workers": 2}
    options |= {"shuffle": False, "collate_fn": list, "batch_size": BATCH}
    with DataLoader(Mortal(), generator=generator_of(), **options) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state, expected = loader.state_dict(), list(iterator)
    deaths = Script(tmp_path, "item 9", "item 14")
    with DataLoader(Mortal(deaths), generator=generator_of(), **options) as loader:
        loader.load_state_dict(state)
        with pytest.warns(RestartWarning):
            actual = list(loader)

    assert expected == actual


class Slow(IterableDataset):
    """Takes a moment for each sample, and has no state."""

    def __iter__(self):
        for index in range(12):
            time.sleep(0.06)
            yield index


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [0, 1])
def test_fetching_again_may_take_longer_than_a_timeout(restarts):
    """The timeout is for a batch, not for those that are fetched again before it."""
    options = {"num_workers": 1, "timeout": 0.4, "batch_size": 1, "restarts": restarts}
    with quiet(), opened(Slow(), options) as loader:
        iterator = iter(loader)
        for _ in range(10):
            next(iterator)
        state = loader.state_dict()
    with quiet(), opened(Slow(), options) as loader:
        loader.load_state_dict(state)

        assert [[10], [11]] == [plain(batch) for batch in loader]


def hung_in_replay(tmp_path, restarts):
    """Returns the rest of an epoch, and that of a run whose worker 0 hangs as it fetches again."""
    script = Script(tmp_path, later=("item 0.4",), way="SIGSTOP")
    options = {"num_workers": 2, "timeout": 2, "restarts": restarts}
    with quiet(), opened(MortalStream(script), options) as loader:
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        state, expected = loader.state_dict(), [plain(batch) for batch in iterator]
    script.arm()
    with quiet(), opened(MortalStream(script), options) as loader:
        loader.load_state_dict(state)
        return expected, [plain(batch) for batch in loader]


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
