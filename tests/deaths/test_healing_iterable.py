"""
Dead workers of iterable datasets are replaced at their position: by fetching again what they had
fetched, or by the dataset's state_dict(). Every batch equals that of torch's loader.
"""

import os
import signal

import pytest
import torch
from torch.utils.data import get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from shmloader import BatchTooLarge, DataLoader, RestartWarning
from tests.helpers.healing import (
    RESTARTS,
    assert_case_heals,
    assert_heals,
    epoch,
    healed,
    open_loader,
    undisturbed,
)
from tests.helpers.mortal import (
    Collate,
    Init,
    MortalStream,
    Remembering,
    Script,
    draws,
)
from tests.helpers.programs import wait_until

PERSISTENT = {"persistent_workers": True, "plan": (None, 3, None)}


def stream(script):
    """Is replayed; draws in iter(), before the first sample, in samples, and around them."""
    return MortalStream(script), {"collate_fn": Collate(script), "worker_init_fn": Init(script)}


class Faulty(MortalStream):
    """Raises at some samples, and goes on behind them."""

    def __iter__(self):
        return map(self.check, super().__iter__())

    def check(self, sample):
        if sample[1] in (4, 5, 11):
            raise LookupError(f"no sample {sample[1]:.0f} in worker {sample[0]:.0f}")
        return sample


class Visit:
    """Draws for an item; points are "item i"."""

    def __init__(self, script):
        self.script = script

    def __call__(self, item):
        self.script(f"item {item}")
        return draws(item, get_worker_info().id)


def iterable_pipe(script):
    numbers = IterableWrapper(list(range(30))).shuffle(buffer_size=9).sharding_filter()
    return numbers.map(Visit(script))


def map_pipe(script):
    return SequenceWrapper(list(range(24))).map(Visit(script))


CASES = {
    # case: how the dataset is made, where workers die, options
    "before a sample's draws": (stream, ["item 0.4", "item 1.16"], {}),
    "after a sample's draws": (stream, ["drawn 0.4", "drawn 1.16"], {}),
    "at the first and the last sample": (stream, ["begin 0", "item 0.0", "drawn 1.20"], {}),
    "at one sample again and again": (stream, ["item 1.7"] * 3, {}),
    "all at once": (stream, ["drawn 0.7", "drawn 1.7"], {}),
    "in collate_fn, in worker_init_fn": (stream, ["collate 0", "collate 1", "init 1"], {}),
    "in the last batch": (stream, ["drawn 0.16", "drawn 1.20", "item 1.18"], {}),
    "one by one": (MortalStream, ["item 0.4", "drawn 0.16"], {"batch_size": None}),
    "drop_last": (stream, ["item 0.4", "drawn 0.16", "drawn 1.20"], {"drop_last": True}),
    "deep prefetch, few slots": (
        stream,
        ["item 0.4", "drawn 1.9"],
        {"prefetch_factor": 5, "slots": 2},
    ),
    "with errors": (Faulty, ["item 0.1", "drawn 0.6", "item 1.5", "item 1.12"], {}),
    "persistent": (
        stream,
        ["item 0.4", "drawn 1.20"],
        {**PERSISTENT, "later": ["begin 0", "item 1.3", "init 1", "drawn 0.4", "item 0.16"]},
    ),
    # Datasets and iterators with states are in test_dataset_states.
    "state of the dataset, one by one": (Remembering, ["item 0.4"], {"batch_size": None}),
    "iterable data pipe": (
        iterable_pipe,
        ["item 3", "item 4", "item 11", "item 28"],
        {**PERSISTENT, "later": ["item 5", "item 6", "item 7"]},
    ),
    "map data pipe": (map_pipe, ["item 4", "item 20"], {**PERSISTENT, "later": ["item 3"]}),
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("case", CASES)
def test_no_batch_changes(tmp_path, case):
    """Wherever a worker dies, batches, their order and all random draws are torch's."""
    assert_case_heals(tmp_path, *CASES[case])


class DiesInReplay(MortalStream):
    """Kills the replacement too, so many times, at a sample that was served long ago."""

    def samples(self, start, eager):
        for sample in super().samples(start, eager):
            if sample[1] == 1 and ("item 0.9", 0) not in self.script.left:
                self.script(f"again {int(sample[0])}")
            yield sample


def test_death_while_replaying(tmp_path):
    """A replacement that dies while it replays is replaced in its turn."""
    script = Script(tmp_path, "item 0.9", "again 0", "again 0")

    assert_heals(DiesInReplay, script, Script(tmp_path))


# Exhausted workers


@pytest.mark.thorough
def test_death_of_an_exhausted_worker(tmp_path):
    """A worker that dies when its share is served costs nothing; the next epoch has another."""
    dataset = MortalStream(Script(tmp_path))
    options = {"persistent_workers": True, "batch_size": 4}
    expected = undisturbed(dataset, plan=(None, None), **options)
    with open_loader(DataLoader, dataset, restarts=1, **options) as loader:
        iterator = iter(loader)
        actual = []
        for batch in iterator:
            actual.append(batch.tolist())
            if len(actual) == 11:  # the first that comes after the end of worker 0
                assert not iterator._workers_status[0]
                os.kill(iterator._workers[0].pid, signal.SIGKILL)
                assert wait_until(lambda: not iterator._workers[0].is_alive())
        assert 0 == loader.stats().restarts
        with pytest.warns(RestartWarning, match="it was replaced, and"):
            actual = [actual, epoch(loader)]

    assert expected == actual


class Leaving:
    """Makes every worker exit with status 7, and one by a signal, when it is told to quit."""

    def __call__(self, worker):
        from multiprocessing.util import Finalize

        end = (os._exit, (7,)) if worker else (os.kill, (os.getpid(), signal.SIGKILL))
        Finalize(None, end[0], args=end[1], exitpriority=100)


@pytest.mark.thorough
def test_death_on_the_way_out(tmp_path):
    """The exit of a worker that has answered all its requests is not reported."""
    dataset = MortalStream(Script(tmp_path))
    plan = (None, 2, None)
    expected = undisturbed(dataset, plan=plan)

    assert (expected, 0, 0) == healed(dataset, plan=plan, worker_init_fn=Leaving())


# Large states


class Secretive(Remembering):
    """Its state has something more, by its position."""

    def __init__(self, script, more):
        super().__init__(script)
        self.more = more

    def state_dict(self):
        return {**super().state_dict(), **self.more(self.position)}


def large(position):
    return {"bytes": bytes(1 << 20)} if position == 6 else {}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::shmloader.RestartWarning", "ignore:worker . has no state")
def test_state_without_room(tmp_path):
    """The batches come, even after a death; behind the state comes an error."""
    script = Script(tmp_path, "item 0.8")
    expected = undisturbed(Secretive(Script(tmp_path), large))[0]
    options = {"restarts": RESTARTS, "ring_bytes": 1 << 19}
    with open_loader(DataLoader, Secretive(script, large), **options) as loader:
        iterator = iter(loader)
        actual = [next(iterator).tolist(), next(iterator).tolist()]
        for _ in range(2):  # of either worker
            del expected[2]
            with pytest.raises(BatchTooLarge, match="set ring_bytes="):
                next(iterator)
        actual += [batch.tolist() for batch in iterator]
        restarts = loader.stats().restarts

    assert ([], 1) == (script.left, restarts)
    assert expected == actual


@pytest.mark.thorough
def test_large_state_is_carried(tmp_path):
    """A state larger than the batches goes with every answer, and restores its dataset."""

    def make(script):
        return Secretive(script, lambda position: {"bytes": torch.full((300_000,), position)})

    assert_heals(make, Script(tmp_path, "item 0.4", "item 1.9"), Script(tmp_path), slots=6)
