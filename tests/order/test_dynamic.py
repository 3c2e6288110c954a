"""`assignment="dynamic"`: the sampler's batches in its order, whichever worker is free for them."""

import os
import random
import time
import warnings

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from shmloader import DataLoader
from tests.helpers.mortal import Script
from tests.helpers.programs import wait_until
from tests.order.scripted import Scripted

COUNT, BATCH = 61, 3


class Uneven(Scripted):
    """Samples (2,) int64, the index and a hash of it, some of which take longer."""

    count = COUNT

    def __getitem__(self, index):
        self.pass_by(f"item {index}")
        if index % 10 == 0:
            time.sleep(0.004)
        if index == 1000:
            raise LookupError(f"no sample {index}")
        return torch.tensor([index, index * 2654435761 % 2**31])


class ByProcess(Dataset):
    """Sample 0 waits for a file; samples (2,) int64 are the index and the pid that fetched it."""

    def __init__(self, gate):
        self.gate = str(gate)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index == 0:
            wait_until(lambda: os.path.exists(self.gate))
        return torch.tensor([index, os.getpid()])


def epochs(kind, dataset, plan=(None, None), **options):
    """Iterate as often as the plan has entries, each of which says after how many to break off."""
    generator = torch.Generator()
    generator.manual_seed(3)
    settings = {"batch_size": BATCH, "shuffle": True, "num_workers": 3, "generator": generator}
    settings |= options
    taken = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = kind(dataset, **settings)
        for stop_after in plan:
            taken.append([])
            for batch in loader:
                taken[-1].append(batch.tolist())
                if len(taken[-1]) == stop_after:
                    break
        if kind is DataLoader:
            loader.close()
        elif loader._iterator is not None:
            loader._iterator._shutdown_workers()
    return taken


@pytest.mark.core(every=3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch_factor": 1},
        {"prefetch_factor": 7},
        {"num_workers": 1},
        {"num_workers": 7},
        {"persistent_workers": True},
        {"slots": 2},
        {"multiprocessing_context": "spawn", "num_workers": 2},
        {"multiprocessing_context": "forkserver", "num_workers": 2},
        {"batch_size": None, "shuffle": False},
        {"drop_last": True},
    ],
    ids=str,
)
def test_batches_are_torchs_in_its_order(options):
    """Only the worker differs."""
    expected = epochs(TorchDataLoader, Uneven(), **without_ours(options))

    assert expected == epochs(DataLoader, Uneven(), assignment="dynamic", **options)


def without_ours(options):
    return {name: value for name, value in options.items() if name != "slots"}


@pytest.mark.core(every=2)
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_that_are_broken_off(persistent):
    """What was asked for beyond is discarded, and the next epoch is whole."""
    plan, options = (2, None, 5, None), {"persistent_workers": persistent}
    expected = epochs(TorchDataLoader, Uneven(), plan, **options)

    assert expected == epochs(DataLoader, Uneven(), plan, assignment="dynamic", **options)


@pytest.mark.parametrize("workers", [1, 3])
def test_out_of_order_each_batch_comes_once(workers):
    """Out of order, too, every request is sent to some worker."""
    options = {"in_order": False, "num_workers": workers, "assignment": "dynamic"}
    (expected,) = epochs(TorchDataLoader, Uneven(), (None,))
    (actual,) = epochs(DataLoader, Uneven(), (None,), **options)

    assert sorted(expected) == sorted(actual)


def test_an_error_comes_in_its_place():
    """A sample that cannot be had raises where torch raises, and the epoch goes on."""
    sampler = [[1, 2], [3, 1000], [4, 5], [6, 7]]
    with DataLoader(Uneven(), batch_sampler=sampler, num_workers=2, assignment="dynamic") as loader:
        iterator = iter(loader)
        assert [1, 2] == next(iterator)[:, 0].tolist()
        with pytest.raises(LookupError, match="no sample 1000"):
            next(iterator)
        assert [[4, 5], [6, 7]] == [batch[:, 0].tolist() for batch in iterator]


def test_a_slow_sample_holds_up_one_worker(tmp_path):
    """
    While one worker waits, the other gets every further request that torch would share out.

    The batches that were held before it go on in order as soon as it is there.
    """
    options = {"batch_size": 1, "num_workers": 2, "prefetch_factor": 4, "assignment": "dynamic"}
    with DataLoader(ByProcess(tmp_path / "gate"), in_order=False, **options) as loader:
        iterator = iter(loader)
        early = [next(iterator)[0].tolist() for _ in range(20)]
        (tmp_path / "gate").touch()
        late = [batch[0].tolist() for batch in iterator]

    slow = next(pid for index, pid in late if index == 0)
    assert slow not in {pid for _, pid in early}
    assert sorted(index for index, _ in early + late) == list(range(COUNT))


def test_in_order_the_free_worker_is_asked(tmp_path):
    """
    In order, what the deliveries before a slow batch allow goes to the worker that waits for none.

    Batch 3 is slow: by turns its worker would be asked for at least one of the next three, too.
    """
    sampler = [[1], [2], [3], [0], *([index] for index in range(4, COUNT))]
    options = {"batch_sampler": sampler, "num_workers": 2, "prefetch_factor": 3}
    with DataLoader(ByProcess(tmp_path / "gate"), assignment="dynamic", **options) as loader:
        iterator = iter(loader)
        batches, ledger = [], iterator._transport.ledger
        assert wait_until(lambda: ledger.is_seated(0) and ledger.is_seated(1))
        for _ in range(3):
            assert wait_until(lambda: min(iterator._transport.figures.loads()) == 0)
            batches.append(next(iterator)[0].tolist())
        (tmp_path / "gate").touch()
        batches += [batch[0].tolist() for batch in iterator]
    pids = [pid for _, pid in batches]

    assert [[index] for index, _ in batches] == sampler
    assert {pids[3]} != {pids[6], pids[7], pids[8]} and 1 == len({*pids[6:9]})


def test_a_worker_that_starts_late_delays_nobody(tmp_path):
    """Requests go to those whose init functions are done; the late one is asked once its is."""

    def late(worker):
        if worker == 0:
            assert wait_until(lambda: (tmp_path / "gate").exists())

    options = {"num_workers": 2, "worker_init_fn": late, "assignment": "dynamic"}
    with DataLoader(Uneven(), BATCH, **options) as loader:
        iterator = iter(loader)
        assert wait_until(lambda: iterator._transport.ledger.is_seated(1))
        early = [next(iterator)[:, 0].tolist() for _ in range(10)]
        (tmp_path / "gate").touch()
        late_ones = [made[:, 0].tolist() for made in iterator]
    assert list(range(COUNT)) == [index for made in early + late_ones for index in made]


@pytest.mark.core(every=2)
@pytest.mark.parametrize("way", ["SIGKILL", "os._exit(7)"])
def test_deaths_change_no_batch(way, tmp_path):
    """The requests of a dead worker go to its replacement."""
    script = Script(tmp_path, "item 7", "item 7", "item 30", "item 44", way=way)
    expected = epochs(TorchDataLoader, Uneven())
    options = {"assignment": "dynamic", "restarts": 20, "seed_by": "batch"}

    assert expected == epochs(DataLoader, Uneven(script), **options)
    assert [] == script.left


def test_draws_of_the_training_are_untouched():
    """Choosing a worker draws nothing."""
    random.seed(4)
    torch.manual_seed(4)
    expected = random.random(), torch.rand(()).item()
    with DataLoader(
        Uneven(), num_workers=2, assignment="dynamic", generator=torch.Generator()
    ) as loader:
        random.seed(4)
        torch.manual_seed(4)
        for _ in loader:
            pass
        assert expected == (random.random(), torch.rand(()).item())
