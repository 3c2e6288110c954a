"""With `seed_by="batch"` the draws of a batch depend on the batch, not on who fetches it."""

import random
import warnings

import numpy
import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

import shmloader
from shmloader import DataLoader
from shmloader.worker import seeds
from tests.helpers.datasets import Computed
from tests.helpers.mortal import Mortal, Script

COUNT, BATCH = 22, 4
FORKSERVER = pytest.param({"multiprocessing_context": "forkserver"}, marks=pytest.mark.thorough)

# Made once by version 1 of the recipe. If they change, results that people have published do.
GOLDEN = [
    (
        (0, 0, 0),
        {
            "random": 13760800683302050163,
            "numpy": [1513390627, 797112218, 1927010052],
            "torch": [391152432, 91026000, 471106753],
            "batch": [17294041978349719226, 16835247736940272299],
            "collate": [7889445380417689218, 15619478068098210849],
            "sample 5": [3320666508616035378, 13725321688756975449],
        },
    ),
    (
        (2**63 - 1, 3, 10**8),
        {
            "random": 17223009935592331906,
            "numpy": [1907560363, 867617669, 1844305043],
            "torch": [426607361, 1751803523, 1551454646],
            "batch": [1537940401306640397, 16178882862366319892],
            "collate": [5167473001979156144, 2504730874886828822],
            "sample 5": [6827330910475142085, 6527866360382928572],
        },
    ),
]


def drawn():
    """A draw of each global generator, and two of the sample's own."""
    own = [shmloader.rng().random(), shmloader.rng().random()]
    return [random.random(), numpy.random.rand(), torch.rand(()).item(), *own]


class Drawing(Mortal):
    """Samples (6,) float64: the index and draws; may die at a point of a script."""

    count = COUNT

    def __getitem__(self, index):
        self.script(f"item {index}")
        sample = torch.tensor([index, *drawn()], dtype=torch.float64)
        self.script(f"drawn {index}")
        return sample


class AtOnce(Drawing):
    """The same, fetched a batch at a time."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """An endless one would do; its samples are draws."""

    def __iter__(self):
        for index in range(COUNT):
            yield torch.tensor([index, *drawn()], dtype=torch.float64)


def collate(samples):
    """Draw once more for the batch."""
    return default_collate(samples), torch.tensor(drawn(), dtype=torch.float64)


def epochs(dataset, count=2, **options):
    """Iterate a loader whose order is always the same; each epoch as nested lists."""
    settings = {"batch_size": BATCH, "collate_fn": collate, "seed_by": "batch"}
    settings |= {"generator": torch.Generator().manual_seed(7), **options}
    if "sampler" not in options and not isinstance(dataset, IterableDataset):
        settings.setdefault("shuffle", True)
    with warnings.catch_warnings(action="ignore"), DataLoader(dataset, **settings) as loader:
        return [[[batch.tolist(), extra.tolist()] for batch, extra in loader] for _ in range(count)]


@pytest.mark.parametrize(("numbers", "golden"), GOLDEN)
def test_golden_draws(numbers, golden):
    """The recipe is what it was when it was published."""
    seeds.seed_generators(numbers)
    turn = seeds.Turn(numbers)
    actual = {
        "random": random.getrandbits(64),
        "numpy": numpy.random.randint(0, 2**31, 3).tolist(),
        "torch": torch.randint(0, 2**31, (3,)).tolist(),
        "batch": turn.rng().bit_generator.random_raw(2).tolist(),
    }
    turn.collate()
    actual["collate"] = turn.rng().bit_generator.random_raw(2).tolist()
    fifth = seeds.Turn(numbers, None, 5)
    actual["sample 5"] = fifth.rng().bit_generator.random_raw(2).tolist()

    assert golden == actual


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Drawing, {"num_workers": 1}),
        (AtOnce, {"num_workers": 2, "slots": 2}),
        (Drawing, {"num_workers": 3, "prefetch_factor": 1}),
        (AtOnce, {"num_workers": 7}),
        (Drawing, {"num_workers": 2, "assignment": "dynamic"}),
        (AtOnce, {"num_workers": 3, "assignment": "dynamic", "prefetch_factor": 5}),
        (Drawing, {"num_workers": 2, "multiprocessing_context": "forkserver"}),
        (AtOnce, {"num_workers": 2, "restarts": 1}),
    ],
    ids=str,
)
def test_draws_do_not_depend_on_the_workers(kind, options):
    """Any number of workers, assignment and start method draw what `num_workers=0` draws."""
    assert epochs(kind()) == epochs(kind(), **options)


@pytest.mark.thorough
def test_epochs_of_persistent_workers_differ():
    """They draw their base seed once, and still no epoch repeats another's draws."""
    options = {"persistent_workers": True, "shuffle": False, "count": 3}
    first, second, third = epochs(Drawing(), num_workers=2, **options)
    again = epochs(Drawing(), num_workers=3, assignment="dynamic", **options)

    assert [first, second, third] == again
    draws = [tuple(sample) for epoch in again for batch, _ in epoch for sample in batch]
    assert len(set(draws)) == 3 * COUNT


@pytest.mark.thorough
def test_an_epoch_that_is_broken_off():
    """The next one draws as if the first had gone on."""
    taken = []
    for workers, stop_after in [(2, None), (3, 1)]:
        torch.manual_seed(5)
        options = {"num_workers": workers, "persistent_workers": True, "seed_by": "batch"}
        options["batch_size"] = BATCH
        with warnings.catch_warnings(action="ignore"), DataLoader(Drawing(), **options) as loader:
            for number, _ in enumerate(loader, start=1):
                if number == stop_after:
                    break
            taken.append([batch.tolist() for batch in loader])

    assert taken[0] == taken[1]


def test_generators_of_the_training_are_left_alone():
    """Without workers, too, fetching draws nothing from what the training draws from."""
    random.seed(1)
    numpy.random.seed(2)
    loader = DataLoader(Drawing(), BATCH, seed_by="batch", generator=torch.Generator())
    torch.manual_seed(3)
    expected = random.random(), numpy.random.rand(), torch.rand(()).item()
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    for _ in loader:
        pass

    assert expected == (random.random(), numpy.random.rand(), torch.rand(()).item())


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_torch_does_not_make(workers):
    """With `batch_size=None` each sample is a batch; `rng()` is that of the whole."""
    options = {"batch_size": None, "collate_fn": None, "shuffle": True}
    torch.manual_seed(2)
    with DataLoader(Drawing(), num_workers=workers, seed_by="batch", **options) as loader:
        rows = [sample.tolist() for sample in loader]
    torch.manual_seed(2)
    with DataLoader(Drawing(), num_workers=1, seed_by="batch", **options) as loader:
        assert rows == [sample.tolist() for sample in loader]
    assert COUNT == len({row[4] for row in rows})


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"restarts": 2}, FORKSERVER], ids=str)
def test_streams_draw_by_the_batch(options):
    """An iterable dataset draws the same each time, with the same workers, forked or not."""
    first = epochs(Stream(), num_workers=2)

    assert first == epochs(Stream(), num_workers=2, **options)
    assert epochs(Stream()) == epochs(Stream(), num_workers=1)


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("kind", "way", "options"),
    [
        (Drawing, "SIGKILL", {"num_workers": 2}),
        (AtOnce, "SIGKILL", {"num_workers": 2, "persistent_workers": True}),
        (Drawing, "sys.exit(0)", {"num_workers": 3, "assignment": "dynamic"}),
        (Drawing, "SIGKILL", {"num_workers": 2, "multiprocessing_context": "spawn"}),
        (AtOnce, "sys.exit(0)", {"num_workers": 2}),
        (AtOnce, "SIGKILL", {"num_workers": 3, "assignment": "dynamic"}),
    ],
    ids=str,
)
def test_draws_outlast_deaths(kind, way, options, tmp_path):
    """Workers that die before or after they drew change no draw."""
    script = Script(tmp_path, "item 3", "item 3", "drawn 9", "drawn 17", way=way)
    count = 1 if "multiprocessing_context" in options else 2  # each start imports torch there
    expected = epochs(
        kind(), count, persistent_workers="persistent_workers" in options, num_workers=2
    )

    assert expected == epochs(kind(script), count, restarts=50, **options)
    assert [] == script.left


def test_rng_is_one_for_each_sample():
    """All calls for one sample continue one generator; no two samples share draws."""
    (epoch,) = epochs(Drawing(), count=1)
    pairs = [tuple(sample[4:6]) for batch, _ in epoch for sample in batch]
    pairs += [tuple(extra[3:5]) for _, extra in epoch]

    assert len({draw for pair in pairs for draw in pair}) == 2 * len(pairs)


@pytest.mark.thorough
def test_rng_elsewhere_says_what_to_do():
    """Outside of such a loader there is no seed that it could be made from."""
    with pytest.raises(RuntimeError, match='seed_by="batch"'):
        shmloader.rng()
    with (
        DataLoader(Drawing(), num_workers=1) as loader,
        pytest.raises(RuntimeError, match='seed_by="batch"'),
    ):
        next(iter(loader))


def nested(index):
    """A sample that comes from a loader of its own."""
    before = shmloader.rng().random()
    generator = torch.Generator()
    inner = next(iter(DataLoader(Drawing(), seed_by="batch", generator=generator)))
    return torch.tensor([before, inner[0, 4], shmloader.rng().random()])


def test_a_loader_inside_of_a_dataset():
    """It has draws of its own, and the outer sample's go on behind it."""
    (epoch,) = epochs(Computed(COUNT, nested), count=1, shuffle=False)
    samples = [sample for batch, _ in epoch for sample in batch]

    assert [epoch] == epochs(Computed(COUNT, nested), count=1, shuffle=False, num_workers=2)
    assert 1 == len({sample[1] for sample in samples})
    assert 2 * COUNT == len({draw for sample in samples for draw in (sample[0], sample[2])})


@pytest.mark.parametrize("kind", [tuple, numpy.array, dict.fromkeys])
@pytest.mark.parametrize("options", [{}, {"fetch_threads": 3}])
def test_requests_of_any_kind_have_positions(kind, options):
    """A batch sampler need not yield lists; `rng()` is the sample's all the same."""
    starts = range(0, 40, 5)

    def draws(kind, **options):
        requests = [kind(list(range(start, start + 5))) for start in starts]
        torch.manual_seed(4)
        loader = DataLoader(
            Computed(40, first_draw), batch_sampler=requests, seed_by="batch", **options
        )
        return [batch.tolist() for batch in loader]

    expected = draws(list, num_workers=0)
    assert len({draw for batch in expected for draw in batch}) == 40
    assert draws(kind, num_workers=0) == expected
    assert draws(kind, num_workers=2, **options) == expected


def first_draw(index):
    """The first draw of the sample's own generator."""
    return shmloader.rng().random()
