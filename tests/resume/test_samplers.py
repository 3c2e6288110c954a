"""Samplers of users go on too: by a state of their own, or by drawing again what they drew."""

import itertools
import random
import time

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, RandomSampler, Sampler

from shmloader import DataLoader
from tests.resume.interrupted import BATCH, COUNT, Drawing, disturb, generator_of, quiet, stored


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
}


def loader_of(make, workers, **options):
    settings = {"batch_size": BATCH, "num_workers": workers, "seed_by": "batch", **make()}
    if "batch_sampler" in settings:
        del settings["batch_size"]
    return DataLoader(Named(), **settings, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [(0, 0), (2, 2), (0, 2), (2, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on(kind, workers):
    """Wherever it was interrupted, and whatever the generators are now."""
    for position in (0, 1, 4):
        disturb(5)
        with quiet(), loader_of(KINDS[kind], workers[0]) as loader:
            iterator = iter(loader)
            for _ in range(position):
                next(iterator)
            state = loader.state_dict()
            expected = [batch.tolist() for batch in iterator]
        disturb(6)
        with quiet(), loader_of(KINDS[kind], workers[1]) as loader:
            loader.load_state_dict(stored(state))

            assert expected == [batch.tolist() for batch in loader], position


@pytest.mark.parametrize("kind", ["a sampler's state", "an iterator's"])
def test_one_that_is_out_of_order_goes_on(kind):
    """in_order=False: what was drawn and not delivered is drawn again from an earlier state."""
    with loader_of(KINDS[kind], 3, in_order=False) as loader:
        iterator = iter(loader)
        done = [index for _ in range(4) for index in next(iterator)[:, 0].tolist()]
        state = loader.state_dict()
    with loader_of(KINDS[kind], 3, in_order=False) as loader:
        loader.load_state_dict(state)
        done += [index for batch in loader for index in batch[:, 0].tolist()]

    assert list(range(COUNT)) == sorted(done)


@pytest.mark.parametrize("kind", ["a sampler's state", "an iterator's"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_it_is_interrupted_again_before_a_batch(kind, workers):
    """The state of a resumed iterator that has delivered nothing is the one that was loaded."""
    with quiet(), loader_of(KINDS[kind], workers) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        expected = [batch.tolist() for batch in iterator]
    with quiet(), loader_of(KINDS[kind], workers) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        state = loader.state_dict()
        del iterator
    with quiet(), loader_of(KINDS[kind], workers) as loader:
        loader.load_state_dict(state)

        assert expected == [batch.tolist() for batch in loader]


def counted(batches):
    """How many there are, none of which is kept."""
    return sum(1 for _ in batches)


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
    with yielding(workers, epoch if is_told else 0) as loader:
        loader.load_state_dict(state)

        assert expected == [batch.tolist() for batch in loader]


def test_another_epoch_of_a_sampler_whose_state_does_not_say_it_is_refused():
    """What it would skip is not what was delivered."""
    with yielding(0, 2) as loader:
        next(iter(loader))
        state = loader.state_dict()
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
    with DataLoader(range(COUNT), batch_sampler=Plain(Own(), BATCH, False)) as loader:
        loader.load_state_dict(state)
        expected = state["sampler_state"]["order"]

        assert expected == [index for batch in loader for index in batch.tolist()]
    with DataLoader(range(COUNT), batch_sampler=Otherwise(Own(), BATCH, False)) as loader:
        list(loader)
        with pytest.warns(UserWarning, match=r"Own has a state_dict\(\).*Otherwise draws from it"):
            loader.load_state_dict(loader.state_dict())


def test_a_sampler_without_a_state_refuses_one():
    """A state of a sampler needs a sampler that can take it."""
    with loader_of(KINDS["a sampler's state"], 1) as loader:
        next(iter(loader))
        state = loader.state_dict()

    class Other(Lazy):
        pass

    Other.__name__ = "Own"
    with loader_of(lambda: {"sampler": Other()}, 1) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"no load_state_dict\(\)"):
            iter(loader)


class Broken(Own):
    """Its state cannot be had."""

    def state_dict(self):
        raise OSError("no")


def test_a_state_that_cannot_be_had_breaks_no_epoch():
    """Draws are counted instead."""
    with loader_of(lambda: {"sampler": Broken()}, 1) as loader:
        assert COUNT == sum(len(batch) for batch in loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_trainings_generator_is_put_back(workers):
    """A resumed iter() leaves torch's default generator as it found it."""
    with loader_of(KINDS["shuffled by the default generator"], workers) as loader:
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        disturb(9)
        before = torch.get_rng_state()
        iter(loader)

        assert torch.equal(before, torch.get_rng_state())


def test_the_next_epoch_is_the_one_that_would_have_come():
    """Behind a finished epoch the loader's own generator goes on, and so does a default one."""
    for options in ({"generator": generator_of()}, {}):
        disturb(3)
        with DataLoader(Drawing(), BATCH, shuffle=True, seed_by="batch", **options) as loader:
            list(loader)
            state = loader.state_dict()
            expected = [batch.tolist() for batch in loader]
        disturb(4)
        if options:
            options = {"generator": generator_of(99)}
        with DataLoader(Drawing(), BATCH, shuffle=True, seed_by="batch", **options) as loader:
            loader.load_state_dict(state)

            assert expected == [batch.tolist() for batch in loader]


class SameList:
    """A batch sampler that yields one list again and again, with other indices in it."""

    def __iter__(self):
        batch = []
        for first in range(0, 60, 5):
            batch[:] = range(first, first + 5)
            yield batch


class FirstIsSlow(Dataset):
    """Some batches come much later than those behind them."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index in (0, 40):
            time.sleep(0.3)
        return index


def test_one_list_for_all_requests():
    """Requests that were not delivered are kept as they were when they were drawn."""
    options = {"batch_sampler": SameList(), "num_workers": 2, "in_order": False}
    with DataLoader(FirstIsSlow(), **options) as loader:
        seen = [next(batches).tolist() for batches in [iter(loader)] for _ in range(5)]
        state = loader.state_dict()
    with DataLoader(FirstIsSlow(), **options) as loader, quiet():
        loader.load_state_dict(stored(state))
        seen += [batch.tolist() for batch in loader]

    assert [0, 1, 2, 3, 4] not in seen[:5]
    assert list(range(60)) == sorted(itertools.chain.from_iterable(seen))
