"""`loader.start()` begins what the next iter() would: the same batches, draws and states."""

import os
import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, DistributedSampler

from shmloader import DataLoader
from tests.helpers.copies import Child
from tests.helpers.healing import open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script
from tests.helpers.programs import wait_until

WAYS = [
    {},
    {"persistent_workers": True},
    {"multiprocessing_context": "forkserver"},
    {"num_workers": 0, "multiprocessing_context": None},
]


def seed_all():
    """Seed what a loader without workers draws from."""
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


@pytest.mark.thorough
@pytest.mark.parametrize(("way", "calls"), [*zip(WAYS, [1, 3, 3, 1], strict=True)])
def test_same_batches(tmp_path, way, calls):
    """Every epoch, begun ahead or not, has torch's batches and draws."""
    dataset = Mortal(Script(tmp_path))
    seed_all()
    expected = undisturbed(dataset, plan=(None,) * 3, shuffle=True, **way)
    seed_all()
    actual = []
    with open_loader(DataLoader, dataset, shuffle=True, **way) as loader:
        for is_ahead in (True, False, True):
            for _ in range(calls if is_ahead else 0):
                loader.start()
            actual.append([batch.tolist() for batch in loader])

    assert expected == actual


def test_draws_are_made_ahead():
    """What iter() draws from the default generator is drawn by start(), and not again."""
    torch.manual_seed(3)
    iter(TorchDataLoader(range(4)))
    expected = torch.get_rng_state()
    torch.manual_seed(3)
    with DataLoader(range(4), num_workers=1, multiprocessing_context="fork") as loader:
        loader.start()
        after = torch.get_rng_state()
        iter(loader)

        assert torch.equal(expected, after)
        assert torch.equal(expected, torch.get_rng_state())


@pytest.mark.core(every=3)
@pytest.mark.parametrize("way", WAYS[:3])
def test_workers_fetch_meanwhile(tmp_path, way):
    """The first batches are ready before they are asked for."""
    with DataLoader(Noting(tmp_path), num_workers=2, **way) as loader:
        loader.start()
        assert wait_until(lambda: len(os.listdir(tmp_path)) == 4)


class Noting(Dataset):
    """Notes in a folder which samples were fetched."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 12

    def __getitem__(self, index):
        (self.folder / str(index)).touch()
        return index


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS[:3])
def test_close_undoes_it(way):
    """No worker is left, and the next iter() begins afresh."""
    with DataLoader(range(12), num_workers=2, **way) as loader:
        loader.start()
        pids = [worker.pid for worker in loader._service.started._workers]
        loader.close()
        assert not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids)
        assert list(range(12)) == [int(batch) for batch in loader]


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS[:2])
def test_state(way):
    """The state is that before the first batch; one that is loaded later takes its place."""
    with DataLoader(range(12), num_workers=2, seed_by="batch", **way) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        middle = loader.state_dict()
        loader.load_state_dict(middle)
        loader.start()
        assert middle == loader.state_dict()
        assert list(range(2, 12)) == [int(batch) for batch in loader]
        loader.start()
        loader.load_state_dict(middle)
        assert list(range(2, 12)) == [int(batch) for batch in loader]


def test_child_begins_its_own():
    """A forked child's iter() is of workers of its own."""
    with DataLoader(range(8), num_workers=1, multiprocessing_context="fork") as loader:
        loader.start()
        assert str([*range(8)]) == Child(lambda: [int(batch) for batch in loader]).end()
        assert list(range(8)) == [int(batch) for batch in loader]


def of_rank():
    return DistributedSampler(range(12), num_replicas=2, rank=1, seed=3)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_epoch_of_the_sampler_that_is_set_later(way):
    """iter() begins the epoch that the sampler has then, as without start()."""
    expected = []
    for sampler in (of_rank() for _ in range(2)):
        sampler.set_epoch(5)
        expected.append([*map(int, TorchDataLoader(range(12), sampler=sampler))])
    options = {"num_workers": 2, **way}
    actual = []
    sampler = of_rank()
    with DataLoader(range(12), sampler=sampler, **options) as loader:
        for _ in range(2):
            sampler.set_epoch(0)
            loader.start()
            sampler.set_epoch(5)
            actual.append([*map(int, loader)])

    assert expected == actual


@pytest.mark.thorough
def test_epoch_of_a_loaded_state_is_kept():
    """A state says the sampler's epoch, whatever it is set to, with start() as without."""
    found = []
    for starts in (False, True):
        sampler = of_rank()
        sampler.set_epoch(5)
        with DataLoader(range(12), sampler=sampler, num_workers=1, seed_by="batch") as loader:
            next(iter(loader))
            loader.load_state_dict(loader.state_dict())
            loader.start() if starts else None
            sampler.set_epoch(0)
            found.append([*map(int, loader)])

    assert found[0] == found[1]
    assert 5 == len(found[0])
