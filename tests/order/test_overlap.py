"""`overlap_epochs`: torch's bits, whether the guess of the next epoch is right or wrong."""

import random
import time
import warnings

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler
from torch.utils.data import DataLoader as TorchDataLoader

import shmloader
from shmloader import DataLoader
from shmloader.trainer.foretold import Foretold
from tests.helpers.mortal import Mortal, Script

COUNT, BATCH = 41, 3
RIGHT, WRONG = "right", "wrong"


class Growing(Sampler):
    """What it draws depends on how often it was iterated."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([(index * self.epoch) % COUNT for index in range(COUNT)])

    def __len__(self):
        return COUNT


SHARED = [numpy.random.default_rng(0)]


class Sharing(Growing):
    """Draws from what a copy of it would share."""

    def __init__(self):
        super().__init__()
        SHARED[0] = numpy.random.default_rng(0)

    def __iter__(self):
        return iter(SHARED[0].permutation(COUNT).tolist())


def own_generator():
    generator = torch.Generator()
    generator.manual_seed(4)
    return generator


def distributed(dataset):
    return DistributedSampler(dataset, num_replicas=2, rank=1, seed=3)


# name -> (options for a dataset, what the guess is)
LOADERS = {
    "sequential": (lambda dataset: {}, RIGHT),
    "shuffled by the default generator": (lambda dataset: {"shuffle": True}, RIGHT),
    "by the loader's generator": (
        lambda dataset: {"shuffle": True, "generator": own_generator()},
        RIGHT,
    ),
    "by the sampler's generator": (
        lambda dataset: {"sampler": RandomSampler(dataset, generator=own_generator())},
        RIGHT,
    ),
    "with replacement": (
        lambda dataset: {"sampler": RandomSampler(dataset, replacement=True, num_samples=50)},
        RIGHT,
    ),
    "batch sampler": (
        lambda dataset: {
            "batch_sampler": BatchSampler(RandomSampler(dataset), BATCH, drop_last=True),
            "batch_size": 1,
        },
        RIGHT,
    ),
    "indices": (lambda dataset: {"batch_size": None, "shuffle": True}, RIGHT),
    "distributed, set_epoch forgotten": (lambda dataset: {"sampler": distributed(dataset)}, WRONG),
    "of the user's": (lambda dataset: {"sampler": Growing()}, None),
    "a module's generator": (lambda dataset: {"sampler": Sharing()}, None),
    "a list of batches": (
        lambda dataset: {"batch_sampler": [[1, 2], [3], [4, 5], [7, 6]] * 3, "batch_size": 1},
        RIGHT,
    ),
    "fewer batches than are asked for": (lambda dataset: {"batch_size": 15}, RIGHT),
    "one batch": (lambda dataset: {"batch_size": COUNT}, RIGHT),
}


def run(kind, dataset, options, plan=(None,) * 4, between=lambda number, loader: None):
    """
    Iterate a loader with persistent workers once for each entry of the plan.

    Args:
        plan: After how many batches to break off; None: not at all.
        between: Called with the number of the epoch that follows, and the loader.

    Returns:
        The epochs, each of its batches as nested lists, and the counts of what was foretold.
    """
    settings = {"batch_size": BATCH, "num_workers": 2, "persistent_workers": True, **options}
    torch.manual_seed(9)
    random.seed(9)
    numpy.random.seed(9)
    taken = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = kind(dataset, **settings)
        for number, stop_after in enumerate(plan):
            between(number, loader)
            taken.append([])
            for batch in loader:
                taken[-1].append(batch.tolist())
                if len(taken[-1]) == stop_after:
                    break
        loader._iterator._shutdown_workers()
    return taken, loader.stats().foretold if kind is DataLoader else None


def alive(point):
    """No worker dies."""


def assert_same(make, plan=(None,) * 4, between=lambda number, loader: None, **options):
    """Check that batches are torch's, and return what was foretold."""
    quiet = Mortal(alive, COUNT)
    expected, _ = run(TorchDataLoader, quiet, make(quiet), plan, between)
    dataset = options.pop("dataset", quiet)
    with_ours = {**make(dataset), "overlap_epochs": True, **options}
    actual, foretold = run(DataLoader, dataset, with_ours, plan, between)

    assert expected == actual
    assert foretold.get("used", 0) + foretold.get("discarded", 0) <= foretold.get("sent", 0)
    return foretold


@pytest.mark.parametrize("name", LOADERS)
def test_epochs_are_torchs(name):
    """Every kind of sampler, and a guess that is right, wrong, or not made."""
    make, guess = LOADERS[name]
    foretold = assert_same(make)

    assert (foretold.get("used", 0) > 0) == (guess == RIGHT)
    assert (foretold.get("discarded", 0) > 0) == (guess == WRONG)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 3, "prefetch_factor": 4},
        {"slots": 2},
        {"restarts": 2},
        pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_ways_to_run_it(options):
    """With few slots, snapshots, other workers and start methods."""
    theirs = {name: value for name, value in options.items() if name not in ("slots", "restarts")}
    foretold = assert_same(lambda dataset: {"shuffle": True, **theirs}, (None,) * 3, **options)

    assert foretold["used"] > 0 == foretold.get("discarded", 0)


def test_set_epoch():
    """A sampler that is told the epoch: right, wrong once, and right again."""
    told = [0, 1, 5, 6, 7]

    def between(number, loader):
        loader.sampler.set_epoch(told[number])

    make = LOADERS["distributed, set_epoch forgotten"][0]
    foretold = assert_same(make, (None,) * 5, between)

    assert (3 * 4, 4) == (foretold["used"], foretold["discarded"])


@pytest.mark.parametrize("seed_by", ["worker", "batch"])
def test_draws_in_between(seed_by):
    """A draw of the training's from the sampler's generator makes the guess wrong, and no more."""

    def between(number, loader):
        if number == 2:
            torch.rand(1)

    make = LOADERS["shuffled by the default generator"][0]
    if seed_by == "worker":
        foretold = assert_same(make, (None,) * 5, between)
    else:
        first, _ = run(
            DataLoader,
            Mortal(alive, COUNT),
            {"shuffle": True, "seed_by": "batch"},
            (None,) * 5,
            between,
        )
        options = {"shuffle": True, "seed_by": "batch", "overlap_epochs": True}
        again, foretold = run(DataLoader, Mortal(alive, COUNT), options, (None,) * 5, between)
        assert first == again

    assert (3 * 4, 4) == (foretold["used"], foretold["discarded"])


def test_two_wrong_guesses_in_a_row_are_the_last():
    """Then the order of this loader is not to be foretold."""

    def between(number, loader):
        torch.rand(1)

    make = LOADERS["shuffled by the default generator"][0]
    foretold = assert_same(make, (None,) * 6, between)

    assert (8, 8) == (foretold["sent"], foretold["discarded"])


@pytest.mark.parametrize("stop_after", [1, 5, 12, 13, 14])
def test_break(stop_after):
    """An epoch that is left early, before or while the next one is foretold."""
    plan = (None, stop_after, None, stop_after, None)
    for make, _ in (LOADERS["sequential"], LOADERS["shuffled by the default generator"]):
        assert_same(make, plan)


def test_a_validation_loader_in_between():
    """It draws a base seed from the generator that the guess counted on."""
    dataset = Mortal(alive, 8)

    def between(number, loader):
        kind = type(loader)
        assert 4 == len(list(kind(dataset, 2, num_workers=1)))

    assert_same(lambda dataset: {"shuffle": True, "generator": own_generator()}, between=between)
    assert_same(LOADERS["shuffled by the default generator"][0], between=between)


@pytest.mark.core(values=2)
@pytest.mark.parametrize("way", ["SIGKILL", "sys.exit(0)"])
@pytest.mark.parametrize("guess", [RIGHT, WRONG])
@pytest.mark.parametrize("seed_by", ["worker", "batch"])
@pytest.mark.parametrize(
    "points",
    [("item 0", "drawn 3"), ("drawn 6", "drawn 6"), ("item 9", "item 11"), ("drawn 40", "item 2")],
)
def test_deaths(way, guess, seed_by, points, tmp_path):
    """Workers die over foretold batches, before and after it is known whether they count."""
    script = Script(tmp_path, later=points, way=way)
    sampler = {"sampler": distributed(range(COUNT))}
    told = {RIGHT: [0, 1, 2, 3], WRONG: [0, 7, 8, 8]}[guess]

    def between(number, loader):
        loader.sampler.set_epoch(told[number])
        if number == 1 and type(loader) is DataLoader:
            script.arm()

    def make(dataset):
        return {"sampler": distributed(dataset), "batch_size": BATCH}

    options = {"restarts": 20, "seed_by": seed_by}
    if seed_by == "worker":
        assert_same(make, (None,) * 4, between, dataset=Mortal(script, COUNT), **options)
    else:
        quiet, _ = run(
            DataLoader,
            Mortal(alive, COUNT),
            {**sampler, **options},
            (None,) * 4,
            lambda number, loader: loader.sampler.set_epoch(told[number]),
        )
        options |= {"overlap_epochs": True}
        actual, _ = run(
            DataLoader,
            Mortal(script, COUNT),
            {"sampler": distributed(range(COUNT)), **options},
            (None,) * 4,
            between,
        )
        assert quiet == actual


@pytest.mark.parametrize(
    ("size", "plan", "dies_at"),
    [(COUNT, (None,) * 6, "item 0"), (9, (None, None, None, 3, None, None), "item 26")],
)
def test_a_death_before_a_wrong_guess_is_undone(size, plan, dies_at, tmp_path):
    """Neither what was right and foretold, nor what a broken epoch asked for, is undone."""
    script = Script(tmp_path, later=(dies_at,), way="SIGKILL")

    def between(number, loader):
        if number == 3 and type(loader) is DataLoader:
            time.sleep(0.3)  # until what was foretold of this epoch is answered
            script.arm()
        if number == 4:
            torch.rand(1)  # so the guess is wrong

    options = {"batch_size": size, "num_workers": 1, "prefetch_factor": 3}
    make = {**options, "sampler": FirstDrawn()}
    assert_same(lambda dataset: make, plan, between, dataset=Mortal(script, COUNT), restarts=20)
    assert not script.waiting


class FirstDrawn(Sampler):
    """The first index is drawn, the others come in order."""

    def __iter__(self):
        yield int(torch.randint(COUNT, ()))
        yield from range(COUNT - 1)

    def __len__(self):
        return COUNT


@pytest.mark.parametrize("options", [{"assignment": "dynamic"}, {"fetch_threads": 3}], ids=str)
def test_with_workers_whose_draws_have_no_order(options):
    """With `seed_by="batch"` nothing has to be undone."""
    options = {"shuffle": True, "seed_by": "batch", "num_workers": 3, **options}
    seen = []
    for overlap in (False, True):
        batches, foretold = run(
            DataLoader, Indices(), {**options, "overlap_epochs": overlap}, (None, 4, None, None)
        )
        seen.append(batches)
    assert seen[0] == seen[1]
    assert foretold["used"] > 0


class Indices(torch.utils.data.Dataset):
    """Indices as tensors, which draw from their own generator."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.tensor([index, shmloader.rng().random()])


def test_out_of_order():
    """The set of batches of each epoch is torch's."""
    options = {"in_order": False, "overlap_epochs": True}
    expected, _ = run(TorchDataLoader, Mortal(alive, COUNT), {})
    actual, foretold = run(DataLoader, Mortal(alive, COUNT), options)

    assert foretold["used"] > 0
    for epoch, other in zip(expected, actual, strict=True):
        assert sorted(batch[0][0] for batch in epoch) == sorted(batch[0][0] for batch in other)


class SlowAtTheEnd(torch.utils.data.Dataset):
    """Indices; one worker fetches for long while the other one ends the epoch."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        time.sleep(0.1 if index == COUNT - 4 else 0)
        return torch.tensor(index)


@pytest.mark.parametrize("prefetch_factor", [1, 2, 3])
def test_no_worker_is_foretold_more_than_out_of_order_it_may_have(prefetch_factor):
    """The worker that is free all the time gets its part of the next epoch; the guess is used."""
    given = {"batch_size": 1, "prefetch_factor": prefetch_factor, "in_order": False}
    ours = {"assignment": "dynamic", "seed_by": "batch", "overlap_epochs": True}
    epochs, foretold = run(DataLoader, SlowAtTheEnd(), {**given, **ours})

    expected = [[index] for index in range(COUNT)]
    assert [expected] * 4 == [sorted(epoch) for epoch in epochs]
    assert foretold["used"] > 0 == foretold.get("discarded", 0)


class LargeAtTheEnd(torch.utils.data.Dataset):
    """Samples (n,) uint8 of the index, of which the last is nearly as large as the budget."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.full((200_000 if index == COUNT - 1 else 20_000,), index, dtype=torch.uint8)


def test_a_batch_that_needs_what_foretold_ones_hold():
    """They are given up: the epoch that runs comes first."""
    options = {"batch_size": None, "num_workers": 2, "prefetch_factor": 4}
    expected, _ = run(TorchDataLoader, LargeAtTheEnd(), options)
    options |= {"ring_bytes": 260_000, "overlap_epochs": True}
    actual, foretold = run(DataLoader, LargeAtTheEnd(), options)

    assert expected == actual
    assert foretold["sent"] >= foretold.get("discarded", 0) + foretold.get("used", 0)


def test_what_cannot_be_foretold_costs_nothing():
    """A loader whose epoch is empty, or that ends with its last epoch, leaves nothing behind."""
    batches, foretold = run(DataLoader, Mortal(alive, 0), {"overlap_epochs": True}, (None,) * 2)

    assert ([[], []], 0) == (batches, foretold.get("sent", 0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assignment": "dynamic"}, 'needs seed_by="batch"'),
        ({"fetch_threads": 2}, 'needs seed_by="batch"'),
    ],
)
def test_what_it_does_not_go_with(options, words):
    """The table of options that go together."""
    with pytest.raises(ValueError, match=words):
        DataLoader(
            Mortal(alive), num_workers=2, persistent_workers=True, overlap_epochs=True, **options
        )


@pytest.mark.filterwarnings("ignore::shmloader.UnusedOptionWarning")
def test_nothing_is_foretold_for_workers_that_end():
    """Without persistent workers the epochs are torch's, and no request is sent ahead."""
    options = {"batch_size": 3, "shuffle": True, "num_workers": 2}

    def epochs(kind, **ours):
        torch.manual_seed(9)
        loader = kind(range(COUNT), **options, **ours)
        return [[batch.tolist() for batch in loader] for _ in range(3)], loader

    expected, _ = epochs(torch.utils.data.DataLoader)
    found, loader = epochs(DataLoader, overlap_epochs=True)

    assert expected == found
    assert not any(loader.stats().foretold.values())


@pytest.mark.parametrize("options", [{"batch_size": COUNT}, {"batch_size": 9}])
@pytest.mark.parametrize("wrong", [(3,), (2, 4), (3, 5)])
def test_a_wrong_guess_behind_a_right_one_of_a_whole_epoch(options, wrong):
    """Epochs so short that they are foretold to the end: only the last guess is undone."""

    def draw(number, loader):
        if number in wrong:
            torch.rand(1)

    assert_same(lambda dataset: {**options, "shuffle": True}, (None,) * 6, draw)


def test_a_guess_that_was_spoilt_stays_so():
    """A request that could not be sent, and then one of the epoch before."""
    foretold = Foretold()
    foretold.add(7, 0, [1])
    foretold.draw(0, (0, [1]))
    assert foretold.is_right()
    foretold.spoil(7)
    foretold.spoil(3)
    assert not foretold.is_right()
