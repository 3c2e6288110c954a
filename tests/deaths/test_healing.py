"""
Dead workers are replaced, and every batch equals that of torch's loader without deaths: map-style
datasets, and properties of all datasets.
"""

import os
import signal

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from shmloader import DataLoader, RestartWarning
from tests.helpers.copies import Child
from tests.helpers.healing import (
    assert_case_heals,
    assert_heals,
    healed,
    open_loader,
    undisturbed,
)
from tests.helpers.mortal import WAYS_TO_DIE, Collate, Init, Mortal, Script
from tests.helpers.programs import wait_until
from tests.helpers.threads import on_a_thread

THREE_EPOCHS = {"persistent_workers": True, "plan": (None, 3, None)}


def plain(script):
    """Draws in samples only."""
    return Mortal(script)


def full(script):
    """Draws in samples, in collate_fn, and in worker_init_fn."""
    return Mortal(script), {"collate_fn": Collate(script), "worker_init_fn": Init(script)}


class ByKey(Mortal):
    """A dataset whose keys are not ints."""

    def __getitem__(self, key):
        return super().__getitem__(int(key["number"]))


class Unspoilt(Mortal):
    """Samples that are the same whichever worker makes them."""

    def __getitem__(self, index):
        return super().__getitem__(index)[:1]


class Keeping(Mortal):
    """Keeps every batch that is collated, in a list of this process."""

    def __init__(self, script):
        super().__init__(script)
        self.kept = []

    def collate(self, samples):
        batch = torch.utils.data.default_collate(samples)
        self.kept.append(batch)
        return batch


def keeping(script):
    dataset = Keeping(script)
    return dataset, {"collate_fn": dataset.collate}


def with_failing_init(script):
    """
    Worker 1 cannot be set up: torch answers its first request with that error, others with another.
    """
    return Mortal(script), {"worker_init_fn": Init(script, raises_in=(1,))}


class Large(Mortal):
    """Samples of 16 KB."""

    def __getitem__(self, index):
        return torch.cat([super().__getitem__(index), torch.rand(2000, dtype=torch.float64)])


ERRORS = [0, 1, 2, 3, 1000, 5, 6, 7, 8, 9, 10, 11, 1000, 13, 14, 15, 16, 17, 18, 19, 20]
KEYS = [{"number": str(number)} for number in range(24)]
UNEVEN = [[5, 1], [7], [2, 2, 2, 9], [3], [4, 8], [11, 10], [0]]

CASES = {
    # case: how the dataset is made, where workers die, options
    "before a sample's draws": (full, ["item 4"], {}),
    "after a sample's draws": (full, ["drawn 4"], {}),
    "at the first and the last sample": (full, ["item 0", "drawn 23"], {}),
    "at one sample again and again": (full, ["item 7"] * 3, {}),
    "all at once": (full, ["item 0", "item 3"], {}),
    "all at once, later": (full, ["drawn 13", "drawn 16"], {}),
    "in collate_fn": (full, ["collate 6", "collate 9", "collate 6"], {}),
    "in worker_init_fn": (full, ["init 0", "init 1", "init 1"], {}),
    "while it takes over": (full, ["item 9", "init 1", "init 1"], {}),
    "shuffled": (full, ["item 4", "item 20"], {"shuffle": True}),
    "drop_last": (full, ["item 4", "item 19"], {"batch_size": 5, "drop_last": True}),
    "one by one": (plain, ["item 4", "drawn 20"], {"batch_size": None}),
    "batch_sampler": (plain, ["item 2", "item 11"], {"batch_size": 1, "batch_sampler": UNEVEN}),
    "as they come": (Unspoilt, ["item 4", "item 5", "drawn 20"], {"in_order": False}),
    "keys that are pickled": (ByKey, ["item 4", "drawn 21"], {"sampler": KEYS}),
    "after an error": (plain, ["item 9", "drawn 15"], {"sampler": ERRORS}),
    "before an error": (plain, ["item 3", "item 11"], {"sampler": ERRORS}),
    "an error while setting up": (
        with_failing_init,
        ["init 1"],
        {**THREE_EPOCHS, "later": ["item 3", "item 9", "item 6", "init 0", "item 15"]},
    ),
    "one slot": (full, ["item 4", "drawn 20"], {"slots": 1}),
    "two slots": (full, ["item 4", "drawn 20", "item 3"], {"slots": 2}),
    "deep prefetch": (full, ["item 4", "drawn 20"], {"prefetch_factor": 7}),
    "more workers than batches": (full, ["item 4", "drawn 20", "init 2"], {"num_workers": 10}),
    "a budget that is always short": (
        Large,
        ["item 4", "drawn 8", "item 20"],
        {"ring_bytes": 1 << 16, "slots": 6},
    ),
    "pages beyond the budget": (Large, ["drawn 4", "item 20"], {"ring_bytes": 90_000}),
    "aliases kept by the worker": (keeping, ["item 9", "drawn 21"], {}),
    "persistent": (
        full,
        ["item 4", "drawn 20"],
        {**THREE_EPOCHS, "later": ["item 0", "drawn 5", "init 0", "drawn 20"]},
    ),
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("case", CASES)
def test_no_batch_changes(tmp_path, case):
    """Wherever a worker dies, batches, their order and all random draws are torch's."""
    assert_case_heals(tmp_path, *CASES[case])


@pytest.mark.core(first=1)
@pytest.mark.parametrize("way", WAYS_TO_DIE)
def test_every_way_to_end_is_healed(tmp_path, way):
    """A signal, an exit with any status and an uncaught exception are all deaths."""
    script = Script(tmp_path, "item 4", "drawn 9", way=way)

    assert_heals(full, script, Script(tmp_path))


# Deaths between batches


def kill_idle(*workers):
    """Make something that kills a loader's idle workers and waits until they are gone."""

    def kill(loader):
        for process in [loader._iterator._workers[worker] for worker in workers]:
            os.kill(process.pid, signal.SIGKILL)
            assert wait_until(lambda process=process: not process.is_alive())

    return kill


@pytest.mark.core(first=1)
@pytest.mark.parametrize("workers", [(0,), (1, 0)])
@pytest.mark.parametrize("plan", [(None, None), (2, None), (4, 1, None, None)])
def test_death_between_epochs(tmp_path, plan, workers):
    """An idle worker of a persistent loader that dies is replaced when the next epoch begins."""
    options = {"persistent_workers": True, "plan": plan}
    dataset, own = full(Script(tmp_path))
    expected = undisturbed(dataset, **own, **options)
    actual, restarts, warned = healed(dataset, **own, **options, between=kill_idle(*workers))
    deaths = len(workers) * (len(plan) - 1)

    assert expected == actual
    assert (deaths, deaths) == (restarts, warned)


# Threads and processes of the trainer


@pytest.mark.thorough
def test_iteration_in_a_thread(tmp_path):
    """Deaths are healed without a signal: on a thread that is not the main one."""
    dataset = Mortal(Script(tmp_path, "item 4", "drawn 20"))

    assert (undisturbed(Mortal(Script(tmp_path))), 2) == on_a_thread(lambda: healed(dataset))[:2]


def test_trainer_that_is_a_forked_child(tmp_path):
    """A process that was forked may be a trainer whose workers are healed."""
    child = Child(lambda: healed(Mortal(Script(tmp_path, "item 4", "drawn 20")))[:2])

    assert repr((undisturbed(Mortal(Script(tmp_path))), 2)) == child.end()


@pytest.mark.thorough
@pytest.mark.parametrize("beside", ["ours", "torch"])
def test_two_loaders_side_by_side(tmp_path, beside):
    """Each replaces its own workers; torch's handler of SIGCHLD ignores our deaths."""
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    loaders = [] if beside == "ours" else [open_loader(TorchLoader, Mortal(Script(tmp_path)))]
    for name in "ab"[len(loaders) :]:
        (tmp_path / name).mkdir()
        script = Script(tmp_path / name, "item 4", "drawn 14")
        loaders.append(open_loader(DataLoader, Mortal(script), restarts=2))
    with pytest.warns(RestartWarning), loaders[-1]:
        pairs = [(first.tolist(), second.tolist()) for first, second in zip(*loaders, strict=True)]
        counts = [each.stats().restarts for each in loaders if isinstance(each, DataLoader)]

    assert [(batch, batch) for batch in expected] == pairs
    assert {2} == {*counts}
