"""`assignment="dynamic"`: the sampler's batches in its order, whichever worker is free for them."""

import os
import time

import pytest
import torch

from shmloader import DataLoader
from tests.helpers.datasets import Computed
from tests.helpers.healing import healed, torch_options, undisturbed
from tests.helpers.programs import wait_until

COUNT, BATCH = 61, 3


def uneven(index):
    """A sample (2,) int64, the index and a hash of it; some take longer."""
    if index % 10 == 0:
        time.sleep(0.004)
    return torch.tensor([index, index * 2654435761 % 2**31])


def by_process(gate):
    """Sample 0 waits for a file; samples (2,) int64 are the index and the pid that fetched it."""

    def sample(index):
        if index == 0:
            wait_until(gate.exists)
        return torch.tensor([index, os.getpid()])

    return Computed(COUNT, sample)


@pytest.mark.core(first=1)
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
        {"batch_size": None, "shuffle": False},
        {"drop_last": True},
    ],
    ids=str,
)
def test_batches_are_torchs_in_its_order(options):
    """Only the worker differs."""
    options, dataset = {"shuffle": True, "num_workers": 3, **options}, Computed(COUNT, uneven)
    expected = undisturbed(dataset, (None, None), **torch_options(options))

    options |= {"assignment": "dynamic", "restarts": 0}
    assert expected == healed(dataset, (None, None), **options)[0]


def test_a_slow_sample_holds_up_one_worker(tmp_path):
    """
    While one worker waits, the other gets every further request that torch would share out.

    The batches that were held before it go on in order as soon as it is there.
    """
    options = {"batch_size": 1, "num_workers": 2, "prefetch_factor": 4, "assignment": "dynamic"}
    with DataLoader(by_process(tmp_path / "gate"), in_order=False, **options) as loader:
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
    with DataLoader(by_process(tmp_path / "gate"), assignment="dynamic", **options) as loader:
        iterator = iter(loader)
        batches, ledger = [], iterator._transport.ledger
        assert wait_until(lambda: ledger.is_seated(0) and ledger.is_seated(1))
        for _ in range(3):
            assert wait_until(lambda: min(iterator._transport.ledger.loads()) == 0)
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
    with DataLoader(Computed(COUNT, uneven), BATCH, **options) as loader:
        iterator = iter(loader)
        assert wait_until(lambda: iterator._transport.ledger.is_seated(1))
        early = [next(iterator)[:, 0].tolist() for _ in range(10)]
        (tmp_path / "gate").touch()
        late_ones = [made[:, 0].tolist() for made in iterator]
    assert list(range(COUNT)) == [index for made in early + late_ones for index in made]
