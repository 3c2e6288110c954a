"""States of an epoch's last step, before its end, and after the loop, where the next one begins."""

import contextlib
import itertools
import random
import warnings

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, Sampler
from torch.utils.data.datapipes.iter import IterableWrapper

from shmloader import DataLoader
from tests.lives.material import Remembering
from tests.resume.interrupted import Drawing, Sized, disturb, generator_of, gone_on, left, stored
from tests.resume.interrupted import opened as opened_for_drawing

COUNT, BATCH = 20, 5  # no batch is short, so no sampler has ended with the last one
SHORT = 6  # the last one has two samples, and the sampler has ended with it
BATCHES = COUNT // BATCH

WAYS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # workers before and behind
THOROUGH = [pytest.param(way, marks=pytest.mark.thorough) for way in WAYS[1:]]


class Turning(Remembering):
    """Has a state, and goes over to its next epoch when it is asked for more than there is."""

    def __init__(self):
        super().__init__(COUNT)

    def __len__(self):
        return COUNT


class Last(Sampler):
    """Draws from torch's default generator at its begin, and once more at its end."""

    def __len__(self):
        return COUNT

    def __iter__(self):
        yield from torch.randint(COUNT, (COUNT,)).tolist()
        torch.rand(3)


class Short:
    """Batches whose len() is too small."""

    def __len__(self):
        return BATCHES - 2

    def __iter__(self):
        return iter([list(range(at, at + BATCH)) for at in range(0, COUNT, BATCH)])


def replacing(count):
    return RandomSampler(range(COUNT), True, count, generator=generator_of())


KINDS = {
    "one generator": lambda: {"shuffle": True, "generator": generator_of()},
    "the sampler's": lambda: {"sampler": RandomSampler(range(COUNT), generator=generator_of())},
    "two": lambda: {"sampler": RandomSampler(range(COUNT)), "generator": generator_of(1)},
    "with replacement": lambda: {"sampler": replacing(COUNT)},
    "twice as many": lambda: {
        "sampler": RandomSampler(range(COUNT), num_samples=2 * COUNT, generator=generator_of())
    },
    "the default one": lambda: {"shuffle": True},
    "the default one at its end": lambda: {"sampler": Last()},
    "a state": lambda: {"sampler": Turning()},
    "a state, and no length": lambda: {"sampler": Remembering(COUNT), "seed_by": "batch"},
}


def opened(make, workers, size=BATCH):
    return DataLoader(range(COUNT), size, num_workers=workers, **make())


def epochs(loader, count):
    return [[batch.tolist() for batch in loader] for _ in range(count)]


def flat(batches):
    return [index for batch in batches for index in batch]


def interrupted(make, workers, behind, size=BATCH):
    """The state of the last step or behind the loop, torch's own one, and what comes after it."""
    disturb(5)
    with opened(make, workers, size) as loader:
        for _ in loader:
            torch.rand(2)  # a training's own
            state, outside = loader.state_dict(), torch.get_rng_state()
        if behind:
            state, outside = loader.state_dict(), torch.get_rng_state()
        rest = [] if behind else [[]]
        return state, outside, rest + epochs(loader, 2)


@pytest.mark.parametrize("size", [BATCH, SHORT])
@pytest.mark.parametrize("ways", [*WAYS[:1], *THOROUGH])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_epochs_are_those_that_would_have_come(kind, behind, ways, size):
    """
    From the last step an epoch that ends at once comes first; all draws are those.

    With a short last batch a sampler with a state says what is already of its next epoch.
    """
    if (kind, behind, ways) == ("the default one at its end", False, (0, 1)):
        pytest.skip("a worker's loader draws a sampler's end earlier, between other draws")
    state, outside, expected = interrupted(KINDS[kind], ways[0], behind, size)
    disturb(6)
    with opened(KINDS[kind], ways[1], size) as loader:
        loader.load_state_dict(state)
        torch.set_rng_state(outside)  # as a training does

        assert expected == epochs(loader, len(expected))


class TurningBatches(Turning):
    """Batches of a user, of which the last is short."""

    def __len__(self):
        return -(-COUNT // SHORT)

    def __iter__(self):
        indices = super().__iter__()
        while batch := list(itertools.islice(indices, SHORT)):
            yield batch


@pytest.mark.parametrize("make", [Turning, TurningBatches])
def test_a_short_last_batch_ends_the_epoch_of_the_draws(make):
    """What comes behind it has the seeds of another epoch, not of batches behind the last."""

    class Drawing(list):
        def __getitem__(self, index):
            return torch.rand(())

    def open_drawing():
        how = {"sampler": make(), "batch_size": SHORT}
        if make is TurningBatches:
            how = {"batch_sampler": make()}
        options = {"seed_by": "batch", "generator": generator_of()}
        return DataLoader(Drawing(range(COUNT)), **how, **options)

    loader = open_drawing()
    for _ in zip(range(len(loader)), loader, strict=False):
        state = loader.state_dict()
    expected = epochs(loader, 2)
    again = open_drawing()
    again.load_state_dict(state)

    assert [[], *expected] == epochs(again, 3)


def test_asking_in_the_last_step_draws_nothing():
    """The generator is where torch's own loader has it, then and when the loop ends."""
    places = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        generator = generator_of()
        loader = kind(range(COUNT), BATCH, shuffle=True, generator=generator)
        iterator = iter(loader)
        for _ in range(BATCHES):
            next(iterator)
        if kind is DataLoader:
            loader.state_dict()
        places.append(generator.get_state())
        list(iterator)
        places.append(generator.get_state())

    assert torch.equal(places[0], places[2])
    assert torch.equal(places[1], places[3])
    assert not torch.equal(places[0], places[1])


@pytest.mark.parametrize("ways", [*WAYS[:2], *THOROUGH[1:]])
def test_batches_behind_len_are_the_rest_of_the_epoch(ways):
    """A state that was taken where len() says that all were delivered goes on with them."""

    def open_short(workers):
        options = {"num_workers": workers, "seed_by": "batch"}
        return DataLoader(range(COUNT), batch_sampler=Short(), **options)

    state, _ = left(open_short(ways[0]), len(Short()))
    with open_short(ways[1]) as loader:
        loader.load_state_dict(state)
        rest, whole = epochs(loader, 2)

    assert list(range(2 * BATCH, COUNT)) == flat(rest)
    assert list(range(COUNT)) == flat(whole)


def trained(loader, epochs, first=0):
    """Train in a loop that counts its epochs: its batches and what it saves, in their order."""
    seen = []
    for epoch in range(first, epochs):
        for batch in loader:
            seen += [(epoch, batch.tolist()), (loader.state_dict(), epoch)]
        seen.append((loader.state_dict(), epoch + 1))
    return seen


def saved_in(seen):
    """At which places there is what was saved, its state and its epoch."""
    return [(at, *each) for at, each in enumerate(seen) if isinstance(each[0], dict)]


DATASETS = {"map-style": Drawing, "iterable": Sized}
LOOPS = {
    "no workers": {"resumable": False},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "drop_last": {"num_workers": 1, "drop_last": True},
    "no batches": {"num_workers": 2, "batch_size": None},
    "by worker": {"num_workers": 2, "seed_by": "worker", "persistent_workers": True},
}
IN_THE_CORE = ("map-style-no workers", "map-style-persistent", "iterable-by worker")


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(kind, way, marks=[] if f"{kind}-{way}" in IN_THE_CORE else THOROUGH[0].marks)
        for kind in DATASETS
        for way in LOOPS
    ],
)
def test_a_loop_that_counts_its_epochs_goes_on(kind, way):
    """It saves its epoch with the loader's state in any step, and one more after the loop.

    What it saves then is what an undisturbed one saves.
    """

    def open_one():
        return opened_for_drawing(DATASETS[kind](), {"resumable": True, **LOOPS[way]})

    # Workers that live on bring something from an epoch that was resumed to the next but one.
    count = 3 if LOOPS[way].get("persistent_workers") else 2
    with open_one() as loader:
        seen = trained(loader, count)
    saved = saved_in(seen)
    steps = len(saved) // count
    for number, (at, state, epoch) in enumerate(saved):
        if number % steps not in (0, steps // 2, steps - 2, steps - 1):
            continue
        with open_one() as loader:
            loader.load_state_dict(stored(state))

            assert seen[at + 1 :] == trained(loader, count, epoch), at


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_an_end_that_is_resumed_twice(workers):
    """A run that has only begun the epoch that ends at once, or broken it off, saves it again."""
    state, _, expected = interrupted(KINDS["one generator"], workers, False)
    for _ in range(2):
        with opened(KINDS["one generator"], workers) as loader:
            loader.load_state_dict(state)
            iterator = iter(loader)
            again = loader.state_dict()
            del iterator
        assert state == again
        state = again
    with opened(KINDS["one generator"], workers) as loader:
        loader.load_state_dict(state)

        assert expected == epochs(loader, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_is_broken_off_with_the_last_batch(workers):
    """It has not come to the end; a new iter() begins the next epoch, and so says the state."""
    with opened(KINDS["one generator"], workers) as loader:
        for number, _ in enumerate(loader, 1):
            if number == BATCHES:
                break
        broken = loader.state_dict()
        iterator = iter(loader)
        begun = loader.state_dict()
        expected = [batch.tolist() for batch in iterator]
    for state, rest in ((broken, []), (begun, expected)):
        with opened(KINDS["one generator"], workers) as loader:
            loader.load_state_dict(state)

            assert [rest] == epochs(loader, 1)


def batches_in(seen):
    """The batches and their epochs, in any order."""
    return sorted((b, a) for a, b in seen if isinstance(a, int))


@pytest.mark.thorough
def test_out_of_order_the_last_step_is_before_the_end():
    """With in_order=False too, once all were delivered."""
    options = {"num_workers": 3, "in_order": False}
    with opened_for_drawing(Drawing(), options) as loader:
        seen = trained(loader, 2)
    for at, state, epoch in saved_in(seen):
        with opened_for_drawing(Drawing(), options) as loader:
            loader.load_state_dict(state)

            assert batches_in(seen[at + 1 :]) == batches_in(trained(loader, 2, epoch)), at


def test_an_end_that_cannot_be_drawn_again_is_refused():
    """The sampler draws other indices, so where it would end is not known."""

    class Private(Last):
        def __init__(self, seed):
            self.hidden = generator_of(seed)

        def __iter__(self):
            yield from torch.randperm(COUNT, generator=self.hidden).tolist()

    state, _, _ = interrupted(lambda: {"sampler": Private(1)}, 0, False)
    with opened(lambda: {"sampler": Private(2)}, 0) as loader:
        loader.load_state_dict(state)
        before = torch.get_rng_state()
        with pytest.raises(ValueError, match="its own generator"):
            iter(loader)

        assert torch.equal(before, torch.get_rng_state())


class Hidden(Sampler):
    """Shuffles by a generator that no state has."""

    def __init__(self, kind):
        self.rng = kind(3)

    def __len__(self):
        return COUNT

    def __iter__(self):
        order = list(range(COUNT))
        self.rng.shuffle(order)
        return iter(order)


class Told(Hidden):
    """One that is told its epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch, self.rng = epoch, random.Random(epoch)


@contextlib.contextmanager
def no_generator_named():
    with warnings.catch_warnings(record=True, action="always") as told:
        yield
    assert not [each for each in told if "does not contain" in str(each.message)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [random.Random, numpy.random.default_rng])
def test_generators_that_no_state_has_are_named(kind, workers):
    """At an epoch's end, where no checksum tells; within an epoch that decides, and none warns."""
    options = {"seed_by": "batch", "persistent_workers": workers > 0}
    hidden = lambda: {"sampler": Hidden(kind), **options}  # noqa: E731
    with opened(hidden, workers) as loader:
        list(loader)
        states = {"behind": loader.state_dict()}
        batches = iter(loader)
        states["at its begin"] = loader.state_dict()
        next(batches)
        states["within"] = loader.state_dict()
    for at, state in states.items():
        with opened(hidden, workers) as loader:
            if at == "behind" or (at == "at its begin" and workers):
                with pytest.warns(UserWarning, match=r"not contain \(Hidden\.rng\)"):
                    loader.load_state_dict(state)
            else:
                with no_generator_named():
                    loader.load_state_dict(state)
    for other in ({"sampler": Told(random.Random)}, KINDS["one generator"](), KINDS["a state"]()):
        with opened(lambda other=other: other, workers) as loader, no_generator_named():
            list(loader)
            loader.load_state_dict(loader.state_dict())


def test_a_generator_that_a_sampler_makes_when_it_begins_is_not_missed():
    """As that of Accelerate's sampler: the state is taken, though there is none yet."""

    class Late(Last):
        generator = None

        def __iter__(self):
            self.generator = self.generator or generator_of()
            yield from torch.randperm(COUNT, generator=self.generator).tolist()

    state, _, _ = interrupted(lambda: {"sampler": Late()}, 0, True)
    with opened(lambda: {"sampler": Late()}, 0) as loader:
        loader.load_state_dict(state)

        assert list(range(COUNT)) == sorted(flat(*epochs(loader, 1)))


@pytest.mark.parametrize(
    ("kind", "whose"),
    [("one generator", "sampler"), ("two", "loader")],
)
def test_a_generator_that_is_not_here_is_refused(kind, whose):
    """The next epoch would be drawn from another one; in mid-epoch the checksum decides."""
    make, other = KINDS[kind], KINDS["the default one"]
    with opened(make, 0) as loader:
        before = loader.state_dict()
        list(loader)
        states = before, loader.state_dict()
    with opened(other, 0) as loader:
        for state in states:
            with pytest.raises(ValueError, match=f"{whose} has no generator: give it generator="):
                loader.load_state_dict(state)

        assert BATCHES == len(list(loader))


def open_pipe(persistent):
    pipe = IterableWrapper(range(COUNT)).shuffle().sharding_filter()
    options = {"shuffle": True, "generator": generator_of(), "persistent_workers": persistent}
    return DataLoader(pipe, 2, num_workers=2, resumable=True, restarts=2, **options)


@pytest.mark.core(first=1)
@pytest.mark.filterwarnings("ignore::shmloader.RestartWarning")
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_data_pipes_are_shuffled_by_the_seed_of_the_next_epoch(persistent, dies):
    """By workers that were started for a resumed run, and by those that replace them."""
    with open_pipe(persistent) as loader:
        epochs(loader, 1)
        state = loader.state_dict()
        expected = epochs(loader, 2)
    with open_pipe(persistent) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        if dies:
            iterator._workers[0].kill()
        actual = [batch.tolist() for batch in iterator]

        assert expected == [actual, *epochs(loader, 1)]


class Requests(Dataset):
    """Its samples are what it is asked for."""

    def __getitem__(self, request):
        return type(request).__name__, request

    def __getitems__(self, requests):
        return [(type(requests).__name__, request) for request in requests]


REQUESTED = {
    "whole batches": {"batch_size": BATCH, "sampler": RandomSampler(range(COUNT))},
    "batches as samples": {
        "batch_size": None,
        "sampler": BatchSampler(RandomSampler(range(COUNT)), BATCH, False),
    },
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", REQUESTED)
def test_a_dataset_is_asked_with_lists(kind, workers):
    """A resumed run asks for the rest of the epoch with what torch's samplers draw."""

    def open_requesting():
        how = {**REQUESTED[kind], "generator": generator_of(), "collate_fn": list}
        return DataLoader(Requests(), num_workers=workers, seed_by="batch", **how)

    state, expected = left(open_requesting())

    assert expected == gone_on(open_requesting(), state)
    assert BATCHES - 1 == len(expected)


class Breaking(IterableDataset):
    """A generator that raises at its fifth sample, with a state."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 9:
            self.at += 1
            if self.at == 5:
                raise LookupError("the fifth sample")
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_that_raised_has_ended(workers):
    """It yields nothing after its error, in the loader that met it and in a resumed one."""
    options = {"num_workers": workers, "batch_size": 2}
    loader = DataLoader(Breaking(), **options, resumable=workers > 0)
    batches = iter(loader)
    taken = [next(batches).tolist(), next(batches).tolist()]
    with pytest.raises(LookupError, match="the fifth sample"):
        next(batches)
    resumed = DataLoader(Breaking(), **options, resumable=workers > 0)
    resumed.load_state_dict(loader.state_dict())

    assert [[1, 2], [3, 4]] == taken
    assert [] == list(batches) == list(resumed)
