"""Samplers of users go on too: by a state of their own, or by drawing again what they drew."""

import copy
import functools
import itertools
import random
import re
import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from shmloader import DataLoader, wrap
from shmloader.order.resuming import stateful
from tests.helpers.copies import pickled
from tests.helpers.datasets import Computed
from tests.helpers.warned import recorded
from tests.resume.interrupted import (
    BATCH,
    BATCHES,
    COUNT,
    Drawing,
    disturb,
    generator_of,
    gone_on,
    left,
    plain,
    quiet,
    stored,
)


class Own:
    """A sampler with a state, by which alone it can go on: its order is drawn once."""

    def __init__(self):
        self.order, self.at = random.sample(range(COUNT), COUNT), 0

    def __iter__(self):
        while self.at < COUNT:
            self.at += 1
            yield self.order[self.at - 1]
        self.at = 0

    def __len__(self):
        return COUNT

    def state_dict(self):
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at = list(state["order"]), state["at"]


class Seeded(Own):
    """Its order is that of its epoch, which is in its state; a loaded state is taken apart."""

    def __init__(self, resets=False):
        self.epoch, self.at, self.resets = 0, 0, resets

    def set_epoch(self, epoch):
        if epoch != self.epoch or self.resets:
            self.epoch, self.at = epoch, 0

    @property
    def order(self):
        return random.Random(self.epoch).sample(range(COUNT), COUNT)

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state.pop("epoch"), state.pop("at")


class OwnBatches(Own):
    """The same, of batches."""

    def __iter__(self):
        indices = super().__iter__()
        while batch := list(itertools.islice(indices, BATCH)):
            yield batch

    def __len__(self):
        return -(-COUNT // BATCH)


class Steps:
    """An iterator over batches with a state."""

    def __init__(self):
        self.order, self.at = random.sample(range(COUNT), COUNT), 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= COUNT:
            raise StopIteration
        self.at += BATCH
        return self.order[self.at - BATCH : self.at]

    def state_dict(self):
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at = list(state["order"]), state["at"]


class Stepping:
    """Batches whose iterator has the state."""

    def __iter__(self):
        return Steps()


class Lazy(Sampler):
    """Draws from torch's default generator at each index."""

    def __iter__(self):
        for _ in range(COUNT):
            yield int(torch.randint(COUNT, ()))

    def __len__(self):
        return COUNT


class Eager(Lazy):
    """Draws from it when it is iterated."""

    def __iter__(self):
        return iter(list(super().__iter__()))


class Numpyish(Lazy):
    """Indices that are no ints."""

    def __iter__(self):
        for index in range(COUNT):
            yield ("sample", index)


class Named(Drawing):
    """Samples by such an index."""

    def __getitem__(self, index):
        return super().__getitem__(index[1] if isinstance(index, tuple) else index)


KINDS = {
    "a sampler's state": lambda: {"sampler": Own()},
    "a batch sampler's": lambda: {"batch_sampler": OwnBatches()},
    "an iterator's": lambda: {"batch_sampler": Stepping()},
    "shuffled by the default generator": lambda: {"shuffle": True},
    "with replacement": lambda: {"sampler": RandomSampler(range(COUNT), replacement=True)},
    "twice as many": lambda: {"sampler": RandomSampler(range(COUNT), num_samples=2 * COUNT)},
    "drawn one by one": lambda: {"sampler": Lazy()},
    "drawn at once": lambda: {"sampler": Eager()},
    "names": lambda: {"sampler": Numpyish()},
    "names one by one": lambda: {"sampler": Numpyish(), "batch_size": None},
    "in order": lambda: {"shuffle": False},
    "its own generator": lambda: {"sampler": RandomSampler(range(COUNT), generator=generator_of())},
    "replacing by its own": lambda: {
        "sampler": RandomSampler(range(COUNT), replacement=True, generator=generator_of())
    },
    "distributed": lambda: {"sampler": DistributedSampler(range(2 * COUNT), 2, 1, seed=3)},
    "distributed in order": lambda: {
        "sampler": DistributedSampler(range(2 * COUNT), 2, 1, shuffle=False)
    },
    "batches in a list": lambda: {"batch_sampler": [[i, (i + 1) % COUNT] for i in range(0, 20, 2)]},
    "torch's batches": lambda: {
        "batch_sampler": BatchSampler(SequentialSampler(range(COUNT)), BATCH, True)
    },
    "single indices": lambda: {"batch_size": None, "shuffle": True},
}


def loader_of(make, workers, **options):
    settings = {"batch_size": BATCH, "num_workers": workers, "seed_by": "batch", **make()}
    if "batch_sampler" in settings:
        del settings["batch_size"]
    return DataLoader(settings.pop("dataset", None) or Named(), **settings, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [(0, 0), (2, 2), (0, 2), (2, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on(kind, workers):
    """Wherever it was interrupted, and whatever the generators are now."""
    for position in (0, 1, 4):
        disturb(5)
        state, expected = left(loader_of(KINDS[kind], workers[0]), position)
        disturb(6)

        assert expected == gone_on(loader_of(KINDS[kind], workers[1]), state), position


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_the_training_are_apart(workers):
    """What it draws between two batches of a resumed epoch changes no batch."""
    disturb(5)
    state, expected = left(loader_of(KINDS["drawn one by one"], workers))
    with quiet(), loader_of(KINDS["drawn one by one"], workers) as loader:
        loader.load_state_dict(stored(state))
        found = []
        for batch in loader:
            found.append(plain(batch))
            torch.rand(())

    assert expected == found


@pytest.mark.core(first=1)
@pytest.mark.parametrize("kind", ["a sampler's state", "an iterator's", "its own generator"])
def test_one_that_is_out_of_order_goes_on(kind):
    """in_order=False: what was drawn and not delivered is drawn again, as from an earlier state."""
    with loader_of(KINDS[kind], 3, in_order=False) as loader:
        done = [plain(batch) for batch in itertools.islice(loader, 4)]
        state = loader.state_dict()
    done += gone_on(loader_of(KINDS[kind], 3, in_order=False), state)

    assert list(range(COUNT)) == sorted(sample[0] for batch in done for sample in batch)


@pytest.mark.parametrize("kind", ["a sampler's state", "an iterator's"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_it_is_interrupted_again_before_a_batch(kind, workers):
    """The state of a resumed iterator that has delivered nothing is the one that was loaded."""
    state, expected = left(loader_of(KINDS[kind], workers))
    with quiet(), loader_of(KINDS[kind], workers) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        state = loader.state_dict()
        del iterator

    assert expected == gone_on(loader_of(KINDS[kind], workers), state)


def counted(batches):
    """How many there are, none of which is kept."""
    return sum(1 for _ in batches)


@pytest.mark.thorough
@pytest.mark.parametrize("is_over", [False, True])
def test_an_epoch_that_is_empty_because_the_last_one_was_left(is_over):
    """A sampler that goes on behind its last index has nothing there, in a resumed run too."""
    # All is drawn with the first batch, but not the end.
    options = {"num_workers": 1, "prefetch_factor": COUNT - 1}
    with DataLoader(Drawing(), 1, sampler=Own(), **options) as loader:
        next(iter(loader))
        iterator = iter(loader)
        if is_over:
            assert 0 == counted(iterator)
        state = loader.state_dict()
        coming = [loader, loader] if is_over else [iterator, loader]
        expected = [counted(each) for each in coming]
    with quiet(), DataLoader(Drawing(), 1, sampler=Own(), **options) as loader:
        loader.load_state_dict(stored(state))

        assert expected == [counted(loader), counted(loader)]


class Later(Dataset):
    """Samples of an epoch that it is told, and that its state says."""

    epoch = 0

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index + 100 * self.epoch

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


def tell(loader, epoch):
    """What a program's loop says at the begin of an epoch."""
    for each in (loader.sampler, loader.batch_sampler, loader.dataset):
        if hasattr(each, "set_epoch"):
            each.set_epoch(epoch)
    if loader.generator is not None:
        loader.generator.manual_seed(epoch)
    loader.dataset.epoch = epoch


class SeededBatches(Seeded, OwnBatches):
    pass


TOLD = {
    "a sampler": lambda: {"sampler": Seeded()},
    "one that begins anew": lambda: {"sampler": Seeded(resets=True)},
    "a batch sampler": lambda: {"batch_sampler": SeededBatches()},
    "a generator": lambda: {"shuffle": True, "generator": torch.Generator()},
    "a sampler without a state": lambda: {"sampler": DistributedSampler(range(COUNT), 1, 0)},
}


def train(kind, workers, saved, lasts=None):
    """Run the loop of docs/resume.md, from what was saved to its end, or for so many batches."""
    seen = []
    make = lambda: {**TOLD[kind](), "dataset": Later()}  # noqa: E731
    with quiet(), loader_of(make, workers) as loader:
        if saved:
            loader.load_state_dict(stored(saved["loader"]))
        for epoch in range(saved.get("epoch", 0), 3):
            tell(loader, epoch)
            for batch in loader:
                seen.append(batch.tolist())
                saved.update(loader=loader.state_dict(), epoch=epoch)
                if len(seen) == lasts:
                    return seen
            saved.update(loader=loader.state_dict(), epoch=epoch + 1)
            if lasts == 0:
                return seen
    return seen


@functools.cache
def trained(kind, workers):
    return train(kind, workers, {})


@pytest.mark.core(first=1)
@pytest.mark.parametrize("lasts", [0, 1, BATCHES - 1, BATCHES, BATCHES + 2])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", TOLD)
def test_what_is_told_between_loading_and_iterating_stands(kind, workers, lasts):
    """That loop, interrupted anywhere: a sampler, a generator and a dataset."""
    saved = {}
    first = train(kind, workers, saved, lasts)

    assert trained(kind, workers) == first + train(kind, workers, saved)


COPIES = {
    "copied": copy.copy,
    "pickled": pickled,
    "wrapped": lambda loader: wrap(loader, seed_by="batch"),
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("way", COPIES)
def test_what_is_told_stands_in_a_copy_too(way):
    """A copy of a loader that has loaded a state has the sampler that was given it, and told."""
    with loader_of(TOLD["a sampler"], 1) as loader:
        list(loader)
        state = loader.state_dict()
        loader.sampler.set_epoch(1)
        expected = [batch.tolist() for batch in loader]
    with loader_of(TOLD["a sampler"], 1) as loader:
        loader.load_state_dict(state)
        loader.sampler.set_epoch(1)

        assert expected == [batch.tolist() for batch in COPIES[way](loader)]


def test_another_epoch_in_the_middle_of_one_is_refused():
    """The rest of an epoch cannot be that of another one, which the program has told since."""
    with loader_of(TOLD["a sampler"], 1) as loader:
        loader.sampler.set_epoch(2)
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.sampler.set_epoch(5)
        with pytest.raises(ValueError, match=r"its epoch was 2 and is 5: call set_epoch\(2\)"):
            iter(loader)


class Slow(Own):
    """Whose state takes a second, by a clock that stands still otherwise."""

    now_s = 0.0
    asked = 0

    def state_dict(self):
        Slow.asked, Slow.now_s = Slow.asked + 1, Slow.now_s + 1.0
        return super().state_dict()


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(Slow, "asked", 0)
    monkeypatch.setattr(stateful, "time", SimpleNamespace(perf_counter=lambda: Slow.now_s))


@pytest.mark.core(first=1)
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_takes_long_is_asked_for_rarely(workers, in_order):
    """Not at each draw; what came since is drawn again, and what comes is the same, twice too."""
    options = {"in_order": in_order or workers == 0}
    make = lambda: {"sampler": Slow()}  # noqa: E731
    with loader_of(make, workers, **options) as loader:
        list(loader)
    assert 2 == Slow.asked
    for position in (0, 1, BATCHES - 2):
        disturb(5)
        done = []
        with loader_of(make, workers, **options) as loader:
            done += itertools.islice(loader, position)
            state = loader.state_dict()
        for more in (2, COUNT):
            disturb(6)
            with loader_of(make, workers, **options) as loader:
                loader.load_state_dict(stored(state))
                done += itertools.islice(loader, more)
                state = loader.state_dict()

        assert [*range(COUNT)] == sorted(index for batch in done for index in batch[:, 0].tolist())


class Fickle(Slow):
    """Draws what does not follow from its state."""

    def __iter__(self):
        self.order = random.sample(range(COUNT), COUNT)
        yield from super().__iter__()

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.usefixtures("clock")
def test_draws_that_do_not_follow_from_a_state_are_refused():
    """What is drawn again behind it is compared with what was delivered."""
    make = lambda: {"sampler": Fickle()}  # noqa: E731
    state, _ = left(loader_of(make, 1), 3)
    with loader_of(make, 1) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            ValueError, match="from its state after batch 1, does not draw the same"
        ):
            iter(loader)


class Turned(Own):
    """Draws the next order from a global generator when its epoch ends."""

    def __iter__(self):
        yield from super().__iter__()
        self.order = random.sample(range(COUNT), COUNT)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_an_epochs_end_is_that_of_the_sampler_there(workers):
    """As a program's that keeps the sampler's own: not that of the last draw, run to its end."""
    with quiet(), loader_of(lambda: {"sampler": Turned()}, workers) as loader:
        list(loader)
        state, expected = loader.state_dict(), list(loader.sampler.order)
    with quiet(), loader_of(lambda: {"sampler": Turned()}, workers) as loader:
        loader.load_state_dict(state)

        assert expected == loader.sampler.order
        assert expected == [index for batch in loader for index in batch[:, 0].tolist()]


class Yielding(DistributedSampler):
    """Counts what it has yielded, and begins anew when it is iterated, as torchdata's does."""

    def __init__(self):
        super().__init__(range(COUNT), 1, 0)
        self.yielded, self.skipped = 0, None

    def __iter__(self):
        self.yielded, self.skipped = self.skipped or 0, None
        for index in itertools.islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self):
        return {"yielded": self.yielded}

    def load_state_dict(self, state):
        self.skipped = state["yielded"]


def yielding(workers, epoch):
    options = {"num_workers": workers, "seed_by": "batch"}
    loader = DataLoader(range(COUNT), BATCH, sampler=Yielding(), **options)
    if epoch:
        loader.sampler.set_epoch(epoch)
    return loader


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("position", [0, 1, "last", "over"])
def test_a_distributed_sampler_with_a_state(position, is_told, workers):
    """In a later epoch, before its first batch too, and where it was not told which one."""
    with yielding(workers, 1) as loader:
        list(loader)
        loader.sampler.set_epoch(2)
        iterator = iter(loader)
        steps = len(loader) if isinstance(position, str) else position
        for _ in range(steps):
            next(iterator)
        if position == "over":
            assert not list(iterator)
        state = loader.state_dict()
        if position == "over":
            loader.sampler.set_epoch(3)
            iterator = iter(loader)
        expected = [batch.tolist() for batch in iterator]
    epoch = 3 if position == "over" else 2

    assert expected == gone_on(yielding(workers, epoch if is_told else 0), state)


def test_another_epoch_of_a_sampler_whose_state_does_not_say_it_is_refused():
    """What it would skip is not what was delivered."""
    state, _ = left(yielding(0, 2))
    with yielding(0, 1) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"its epoch was 2 and is 1: call set_epoch\(2\)"):
            iter(loader)


class Plain(BatchSampler):
    """Makes batches as torch's does."""


class Otherwise(BatchSampler):
    """Makes them in a way of its own."""

    def __iter__(self):
        yield from super().__iter__()


def test_a_state_inside_of_a_batch_sampler():
    """It is that of the batches if they are torch's; otherwise a state between epochs warns."""
    with DataLoader(range(COUNT), batch_sampler=Plain(Own(), BATCH, False)) as loader:
        list(loader)
        state = loader.state_dict()
    options = {"batch_sampler": Plain(Own(), BATCH, False), "generator": generator_of()}
    again = DataLoader(range(COUNT), **options)

    assert state["sampler_state"]["order"] == [*itertools.chain(*gone_on(again, state))]
    with DataLoader(range(COUNT), batch_sampler=Otherwise(Own(), BATCH, False)) as loader:
        list(loader)
        with pytest.warns(UserWarning, match=r"Own has a state_dict\(\).*Otherwise draws from it"):
            loader.load_state_dict(loader.state_dict())


def test_a_sampler_without_a_state_refuses_one():
    """A state of a sampler needs a sampler that can take it."""
    state, _ = left(loader_of(KINDS["a sampler's state"], 1))

    class Other(Lazy):
        pass

    Other.__name__ = "Own"
    with loader_of(lambda: {"sampler": Other()}, 1) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"no load_state_dict\(\)"):
            iter(loader)


class Broken(Seeded):
    """Its state cannot be had."""

    def state_dict(self, *, of):
        raise AssertionError("it is not called")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_cannot_be_had_breaks_no_epoch(workers):
    """Draws are counted instead, and only a program that asks the loader is told so, once."""
    make = lambda: {"sampler": Broken()}  # noqa: E731
    with recorded() as warned, loader_of(make, workers) as loader:
        iterator = iter(loader)
        next(iterator)
        assert [] == warned
        state = [loader.state_dict() for _ in range(3)][-1]
        expected = [batch.tolist() for batch in iterator]
        [text] = [str(each.message) for each in warned]
    with loader_of(make, workers) as loader, pytest.warns(UserWarning, match="is not whole"):
        loader.load_state_dict(stored(state))

        assert expected == [batch.tolist() for batch in loader]
    assert re.search(
        "state_dict.. of Broken failed: TypeError: .*'of'.* batches of the sampler are counted",
        text,
    )


class SameList:
    """A batch sampler that yields one list again and again, with other indices in it."""

    def __iter__(self):
        batch = []
        for first in range(0, 60, 5):
            batch[:] = range(first, first + 5)
            yield batch


def some_are_slow(index):
    """Some batches come much later than those behind them."""
    if index in (0, 40):
        time.sleep(0.3)
    return index


@pytest.mark.thorough
def test_one_list_for_all_requests():
    """Requests that were not delivered are kept as they were when they were drawn."""
    options = {"batch_sampler": SameList(), "num_workers": 2, "in_order": False}
    with DataLoader(Computed(60, some_are_slow), **options) as loader:
        seen = [next(batches).tolist() for batches in [iter(loader)] for _ in range(5)]
        state = loader.state_dict()
    seen += gone_on(DataLoader(Computed(60, some_are_slow), **options), state)

    assert [0, 1, 2, 3, 4] not in seen[:5]
    assert list(range(60)) == sorted(itertools.chain.from_iterable(seen))
