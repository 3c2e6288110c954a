"""
A dataset's state in a replaced or a resumed worker is that of the place where it goes on.

Each case runs three epochs beside an undisturbed loader: torch's, or ours if draws are seeded by
the batch. A worker dies at a call of the dataset's that is counted, or between two epochs.
"""

import contextlib
import functools
import itertools
import os
import pickle
import random
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from shmloader import DataLoader, RestartWarning
from shmloader.worker import growth
from tests.helpers.programs import wait_until
from tests.helpers.warned import recorded

BATCH = 2
EACH = 7  # samples of a worker in an epoch
EPOCHS = 3


class Deaths:
    """
    At which call of a dataset's a worker dies: each worker alike.

    Args:
        folder: Where lives and deaths are noted.
        lives: At which of its calls the first process of a worker dies, then the next one, ...
    """

    def __init__(self, folder, *lives):
        self.folder = str(folder)
        self.lives = lives
        self.calls = 0
        self.dies_at = None

    def __call__(self):
        """Die here, if it is time."""
        if self.calls == 0 and (life := self.claim("life", len(self.lives))) is not None:
            self.dies_at = self.lives[life]
        self.calls += 1
        if self.calls == self.dies_at or self.claim("death", self.armed) is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    def claim(self, what, most):
        """Take the first number that no process of this worker has taken; None if there is none."""
        for number in range(most):
            with contextlib.suppress(FileExistsError):
                open(f"{self.folder}/{what} {get_worker_info().id} {number}", "x").close()
                return number
        return None

    @property
    def armed(self):
        """How many processes of each worker die at their next call."""
        return len(os.listdir(f"{self.folder}/armed"))

    def arm(self, count):
        """Have so many processes of each worker die at their next call from now on."""
        for _ in range(count):
            open(f"{self.folder}/armed/{self.armed}", "x").close()


def drawn():
    return [torch.rand(()).item(), random.random()]


class Maps(Dataset):
    """Map-style: counts its samples, and saves that."""

    def __init__(self, deaths, workers):
        self.deaths, self.size, self.count = deaths, EACH * workers, 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.deaths()
        self.count += 1
        return [index, self.count, *drawn()]

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class PlainMaps(Dataset):
    """Map-style without a state."""

    def __init__(self, deaths, workers):
        self.deaths, self.size = deaths, EACH * workers

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.deaths()
        return [index, *drawn()]


class Plain(IterableDataset):
    """A generator without a state; `__iter__` draws at once, and again before the first sample."""

    def __init__(self, deaths, workers):
        self.deaths = deaths

    def __iter__(self):
        return self.samples(random.randrange(1000))

    def samples(self, eager):
        lazy = random.randrange(1000)
        for at in range(EACH):
            self.deaths()
            yield [at, eager, lazy, *drawn()]
        self.deaths()


class Goes(IterableDataset):
    """A generator over a state: the epoch, and the place in it; at its end the next epoch's."""

    def __init__(self, deaths, workers):
        self.deaths, self.epoch, self.at = deaths, 0, 0

    def __iter__(self):
        order = torch.randperm(EACH, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.at < EACH:
            self.deaths()
            self.at += 1
            yield [self.epoch, order[self.at - 1], *drawn()]
        self.deaths()
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


class Skips(Plain):
    """Goes to a state that was loaded at the next `__iter__`, and only there."""

    def __init__(self, deaths, workers):
        super().__init__(deaths, workers)
        self.at, self.eager, self.loaded = 0, None, None

    def __iter__(self):
        self.at, self.eager = self.loaded or (0, random.randrange(1000))
        self.loaded = None
        return self.samples(self.eager)

    def samples(self, eager):
        for at in range(self.at, EACH):
            self.deaths()
            self.at = at + 1
            yield [at, eager, *drawn()]
        self.deaths()

    def state_dict(self):
        return {"at": self.at, "eager": self.eager}

    def load_state_dict(self, state):
        self.loaded = state["at"], state["eager"]


class Waits(Skips):
    """A generator that goes to a loaded state when its first sample is asked for."""

    def __iter__(self):
        self.at, self.eager = self.loaded or (0, random.randrange(1000))
        self.loaded = None
        yield from self.samples(self.eager)
        self.at = 0

    def load_state_dict(self, state):
        if state["at"]:
            super().load_state_dict(state)


class Own(Goes):
    """Its own iterator, which begins the next epoch in `__iter__`."""

    def __init__(self, deaths, workers):
        super().__init__(deaths, workers)
        self.epoch = -1

    def __iter__(self):
        self.epoch, self.at = self.epoch + 1, 0
        return self

    def __next__(self):
        self.deaths()
        if self.at == EACH:
            raise StopIteration
        self.at += 1
        return [self.epoch, self.at, *drawn()]


class Cursor(Iterator):
    """An iterator with a state."""

    def __init__(self, deaths):
        self.deaths, self.at, self.eager = deaths, 0, random.randrange(1000)

    def __next__(self):
        self.deaths()
        if self.at == EACH:
            raise StopIteration
        self.at += 1
        return [self.at, self.eager, *drawn()]

    def state_dict(self):
        return {"at": self.at, "eager": self.eager}

    def load_state_dict(self, state):
        self.at, self.eager = state["at"], state["eager"]


class Pointed(Plain):
    """Its iterator has the state."""

    def __iter__(self):
        return Cursor(self.deaths)


class Both(Goes):
    """It counts epochs, and its iterator has the place."""

    def __iter__(self):
        self.epoch += 1
        return Cursor(self.deaths)

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"] - 1  # `__iter__` comes, and counts it again


MAPS = [Maps, PlainMaps]
KINDS = [*MAPS, Plain, Goes, Skips, Waits, Own, Pointed, Both]


class Run:
    """
    Three epochs of one kind of dataset.

    Args:
        folder: Of deaths.
        lives: As of `Deaths`.
        options: Of the loader.
    """

    def __init__(self, folder, kind, workers, lives=(), **options):
        (folder / "armed").mkdir(exist_ok=True)
        self.kind, self.workers, self.lives, self.options = kind, workers, lives, options
        self.deaths = Deaths(folder, *lives)
        self.restarts = 0

    def open(self, cls, **options):
        """Make a loader, whose order is always the same."""
        settings = {"batch_size": BATCH, "num_workers": self.workers, "collate_fn": list}
        if issubclass(self.kind, Dataset) and not issubclass(self.kind, IterableDataset):
            settings["shuffle"] = True
        settings |= {**self.options, **options, "generator": torch.Generator().manual_seed(2)}
        return cls(self.kind(self.deaths, self.workers), **settings)

    def undisturbed(self, plan=()):
        """Returns the batches of each epoch, of which some are broken off, without a death."""
        kept = ("persistent_workers", "drop_last", "seed_by")
        options = {name: self.options[name] for name in kept if name in self.options}
        return undisturbed(self.kind, self.workers, plan, tuple(options.items()))

    def epochs(self, loader, plan=(), between=None, resume_at=(-1, 0)):
        """
        Returns the batches of each epoch.

        Args:
            plan: How many batches are taken of each epoch; None, or nothing: all.
            between: Is called with the loader before its second epoch.
            resume_at: (epoch, batch) at which another loader goes on from the state; `between` is
                called before the epoch behind that.
        """
        epochs = []
        for epoch in range(EPOCHS):
            if epoch == max(resume_at[0], 0) + 1 and between is not None:
                between(loader)
            epochs.append(batches := [])
            iterator = iter(loader)
            for number in range((plan[epoch : epoch + 1] or (None,))[0] or 99):
                if resume_at == (epoch, number):
                    loader, iterator = self.resumed(loader)
                batch = next(iterator, None)
                if batch is None:
                    break
                batches.append(batch)
        if isinstance(loader, DataLoader):
            self.restarts = loader.stats().restarts
            loader.close()
        elif loader._iterator is not None:
            loader._iterator._shutdown_workers()
        return epochs

    def resumed(self, loader):
        """Returns a loader in another run that goes on where one is, and its iterator."""
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        loader.close()
        loader = self.open(DataLoader)
        loader.load_state_dict(state)
        return loader, iter(loader)

    def arm(self, count):
        """Returns what has each worker, and its replacements, die before its next answer."""

        def between(loader):
            settle(loader)
            self.deaths.arm(count)

        return between

    def kill(self, loader):
        """Kill all workers while they are idle."""
        settle(loader)
        for process in loader._iterator._workers:
            os.kill(process.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(each.is_alive() for each in loader._iterator._workers))


@functools.cache
def undisturbed(kind, workers, plan, options):
    """Iterate torch's loader, or ours if draws are seeded by the batch."""
    cls = DataLoader if "seed_by" in dict(options) else TorchDataLoader
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), kind, workers, **dict(options))
        return run.epochs(run.open(cls), plan)


def settle(loader):
    """Wait until the workers have answered all that they were asked."""
    ledger = loader._iterator._transport.ledger
    assert wait_until(lambda: not any(ledger.loads()))


@pytest.fixture(autouse=True)
def quiet():
    """Let restarts, fetching again and states that are not told go without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RestartWarning)
        warnings.filterwarnings("ignore", message=".*(fetched again|has no state of its)")
        yield


SEEDS = [{}, {"seed_by": "batch"}]
LIVES = [{}, {"persistent_workers": True}]
WAYS = [(workers, {**a, **b}) for workers, a, b in itertools.product((1, 2), SEEDS, LIVES)]
LASTING = [way for way in WAYS if "persistent_workers" in way[1]]


def dealt(ways, *columns):
    """Returns all combinations of values, each with one of the ways, so that all pairs occur."""
    numbered = [list(enumerate(column)) for column in columns]
    return [
        (*(value for _, value in each), ways[sum(number for number, _ in each) % len(ways)])
        for each in itertools.product(*numbered)
    ]


IN_AN_EPOCH = {
    # at which of its calls each worker dies, then each replacement at which of its own
    "at once": [1],
    "behind its first answer": [3],
    "at its last sample": [EACH],
    "at its end, or in the next epoch": [EACH + 1],
    "in the next epoch": [EACH + 4],
    "twice, before an answer": [EACH + 3, 1],
    "twice, behind an answer": [EACH + 3, 4],
    "again and again": [2, 3, 4, 5],
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize(("kind", "place", "way"), dealt(WAYS, KINDS, IN_AN_EPOCH))
def test_a_death_changes_no_state(tmp_path, kind, place, way):
    """Wherever in an epoch workers die, the states in their batches are torch's."""
    workers, options = way
    run = Run(tmp_path, kind, workers, IN_AN_EPOCH[place], **options)
    expected = run.undisturbed()

    assert expected == run.epochs(run.open(DataLoader, restarts=9))
    may_live = IN_AN_EPOCH[place][0] > EACH and "persistent_workers" not in options
    assert run.restarts > 0 or may_live


class Noting(Deaths):
    """The same, and each call is noted."""

    def __call__(self):
        with open(f"{self.folder}/calls", "a") as file:
            file.write("\n")
        super().__call__()


@pytest.mark.core(first=1)
@pytest.mark.parametrize("kind", [Goes, Skips, Waits, Own, Pointed, Both])
def test_a_told_state_spares_the_replay(tmp_path, kind):
    """Only the batch in hand is fetched twice, and behind the end nothing is asked for."""
    run = Run(tmp_path, kind, 1)
    run.deaths = Noting(tmp_path, 3 * BATCH)

    assert run.undisturbed() == run.epochs(run.open(DataLoader, restarts=9))
    assert (1, EPOCHS * (EACH + 1) + BATCH) == (run.restarts, os.stat(tmp_path / "calls").st_size)


BETWEEN = ["idle", "before an answer", "twice before an answer"]
PLANS = [(), (1, None), (2, 1)]
DROPPING = [(workers, {**options, "drop_last": True}) for workers, options in LASTING]


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("kind", "plan", "deaths", "way"), dealt([*LASTING, *DROPPING], KINDS, PLANS, BETWEEN)
)
def test_a_death_between_two_epochs_changes_no_state(tmp_path, kind, plan, deaths, way):
    """Nor when the epoch was broken off, or ended with a short batch."""
    workers, options = way
    run = Run(tmp_path, kind, workers, **options)
    between = run.kill if deaths == "idle" else run.arm(1 + deaths.startswith("twice"))
    expected = run.undisturbed(plan)

    assert expected == run.epochs(run.open(DataLoader, restarts=9), plan, between)
    assert run.restarts >= workers


@pytest.fixture
def grows(monkeypatch):
    """Have each worker grow too much at each second answer; workers inherit it."""
    answers = itertools.count(1)
    monkeypatch.setattr(growth.Growth, "is_too_much", lambda self: next(answers) % 2 == 0)


BESIDE = [{}, {"resumable": True}, {"restarts": 9}]


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("kind", "more", "way"),
    [*itertools.product([Maps], BESIDE, WAYS), *dealt(WAYS, [PlainMaps], BESIDE)],
)
@pytest.mark.usefixtures("grows")
def test_growth_changes_no_state(tmp_path, kind, more, way):
    """A worker that leaves hands on the state behind its last answer, with deaths or without."""
    workers, options = way
    run = Run(tmp_path, kind, workers, [4, 1, 6] if "restarts" in more else (), **options)
    expected = run.undisturbed()
    loader = run.open(DataLoader, worker_bytes=1, **more)

    assert expected == run.epochs(loader)
    assert loader.stats().replaced > 0
    assert (run.restarts > 0) == ("restarts" in more)


RESUMED = {
    # at which of its calls the worker of each run and each replacement dies
    "no death": [],
    "at once": [None, 1, 1],
    "behind an answer": [None, 2 * BATCH],
    "idle": [],
    "before an answer": [],
}
AT = [(0, 2), (1, 0), (1, 3)]
# Each kind with each death, at one of the places: any two values meet, in one way or another.
OF_KINDS = [
    (kind, deaths, AT[(row + column) % 3], LASTING[(row + 2 * column + row // 3) % 4])
    for (row, kind), (column, deaths) in itertools.product(enumerate(KINDS), enumerate(RESUMED))
]


@pytest.mark.core(first=1)
@pytest.mark.parametrize(("kind", "deaths", "at", "way"), OF_KINDS)
def test_a_resumed_run_has_the_state(tmp_path, kind, deaths, at, way):
    """Also if a resumed worker dies: before its first answer, later, or between two epochs."""
    workers, options = way
    more = {"resumable": True, "restarts": 9}
    run = Run(tmp_path, kind, workers, RESUMED[deaths], **options, **more)
    between = {"idle": run.kill, "before an answer": run.arm(1)}.get(deaths)
    expected = run.undisturbed()

    assert expected == run.epochs(run.open(DataLoader), (), between, at)
    assert (run.restarts > 0) == (deaths != "no death")


# Places that cannot be had


class Silent(Maps):
    """Cannot tell its state behind its second batch."""

    def state_dict(self):
        if self.count == 2 * BATCH:
            raise LookupError("no state here")
        return super().state_dict()


class SilentStream(Goes):
    """Cannot tell its state behind its last sample of the first epoch."""

    def state_dict(self):
        if (self.epoch, self.at) == (1, 0):
            raise LookupError("no state here")
        return super().state_dict()


NOT_TOLD = "has no state of its {}, whose state_dict.. failed: {}"


def told_once(warned, kind, error):
    """Assert that one warning names an object and its error. Returns its text."""
    [text] = [str(each.message) for each in warned if "has no state of its" in str(each.message)]
    assert re.search(NOT_TOLD.format(kind, error), text)
    return text


@pytest.mark.thorough
def test_a_state_that_was_not_told_is_not_guessed(tmp_path):
    """The epoch goes on, a warning says it, and a worker that dies there is not replaced."""
    run = Run(tmp_path, Silent, 1, [2 * BATCH + 1], shuffle=False)
    with recorded() as warned, run.open(DataLoader, restarts=1) as loader:
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        with pytest.raises(
            RuntimeError, match=r"not contain the position where .* continue: .*state_"
        ):
            next(iterator)

    assert "the worker is not replaced" in told_once(warned, "Silent", "LookupError: no state here")


@pytest.mark.thorough
def test_behind_the_next_answer_a_worker_can_be_replaced_again(tmp_path):
    """Its state is known there, and is that of the dead worker."""
    run = Run(tmp_path, Silent, 1, [3 * BATCH + 1], shuffle=False)
    with recorded() as warned, run.open(DataLoader, restarts=1) as loader:
        assert [*range(1, EACH + 1)] == [count for batch in loader for _, count, *_ in batch]

    assert "until state_dict() succeeds again" in told_once(warned, "Silent", "LookupError")


class Wants:
    """A state_dict() that takes arguments, as those of some streaming datasets."""

    def state_dict(self, samples):
        raise AssertionError("it is not called")

    def load_state_dict(self, state):
        raise AssertionError("there is no state")


class Exits(Wants):
    """One that leaves."""

    def state_dict(self):
        sys.exit("not now")


class Unpickled(Wants):
    """One whose state cannot be sent."""

    def state_dict(self):
        return {"file": (each for each in ())}


FAILURES = {
    Wants: "TypeError: .* missing 1 required positional argument",
    Exits: "SystemExit: not now",
    Unpickled: "TypeError: cannot pickle 'generator'",
}


class ToldByIterator(Plain):
    """Its iterator fails."""

    failing = Wants

    def __iter__(self):
        return type("Iterating", (self.failing, Cursor), {})(self.deaths)


@pytest.mark.core(first=1)
@pytest.mark.parametrize("failing", FAILURES)
@pytest.mark.parametrize("kind", [PlainMaps, Plain, ToldByIterator])
@pytest.mark.parametrize("more", [{}, {"resumable": True}])
def test_a_state_that_is_never_told_is_none(tmp_path, kind, failing, more):
    """No batch is lost to it, a warning names it once, and replacements go on as without one."""
    bases = (kind,) if kind is ToldByIterator else (failing, kind)
    failed = type("Failed", bases, {"failing": failing})
    run = Run(tmp_path, failed, 2, [EACH], **more)
    expected = Run(tmp_path, kind, 2).undisturbed()  # torch asks for no state
    with recorded() as warned:
        assert expected == run.epochs(run.open(DataLoader, restarts=9))

    assert "the dataset counts as one without state_dict()" in told_once(
        warned, "Failed", FAILURES[failing]
    )
    assert run.restarts > 0


class SilentAtTheEnd(Silent):
    """Cannot tell its state behind its last sample of the first epoch."""

    def state_dict(self):
        if self.count == EACH:
            raise LookupError("no state here")
        return {"count": self.count}


@pytest.mark.parametrize("kind", [SilentStream, SilentAtTheEnd])
def test_an_epoch_is_not_begun_behind_a_state_that_was_not_told(tmp_path, kind):
    """Fetching again leads to no place in a later epoch of a dataset with a state."""
    run = Run(tmp_path, kind, 1, persistent_workers=True, drop_last=kind is SilentStream)
    with run.open(DataLoader, restarts=1) as loader:
        list(loader)
        run.arm(1)(loader)
        with pytest.raises(RuntimeError, match="does not contain the position where a"):
            list(loader)


def test_a_state_that_was_not_told_is_said_to_a_resumed_run(tmp_path):
    """Loading such a state warns, and names the worker."""
    run = Run(tmp_path, Silent, 1, shuffle=False, resumable=True, seed_by="batch")
    with run.open(DataLoader) as loader:
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = loader.state_dict()
    with (
        run.open(DataLoader) as loader,
        pytest.warns(UserWarning, match="response of worker 0 did"),
    ):
        loader.load_state_dict(state)
