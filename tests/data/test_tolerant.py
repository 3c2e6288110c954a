"""`tolerant()`: which samples are left out, what the others are, and what is raised anyway."""

import copy
import warnings

import pytest
import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset
from torch.utils.data.datapipes.iter import IterableWrapper

import shmloader
from shmloader import DataLoader, EmptyBatch, LeftOutWarning, OutOfSharedMemory, cached, tolerant
from shmloader.samples import skip_errors as tolerances
from tests.helpers.copies import pickled
from tests.helpers.datasets import Computed, DiesOnce, Iterated
from tests.helpers.faults import Faulty, FaultyAtOnce, FaultyStream, Unreadable, expected, numbers
from tests.torch.golden.outcomes import attempt, forget_frames

COUNT, BAD = 23, (0, 5, 6, 8, 9, 10, 11, 22)  # of four in a batch, the third has none left
LEFT = [[1, 2, 3], [4, 7], [12, 13, 14, 15], [16, 17, 18, 19], [20, 21]]
TORCHS = torch.utils.data.DataLoader

# In this process they are warnings of pytest's.
pytestmark = pytest.mark.filterwarnings("ignore::shmloader.LeftOutWarning")


def same(one, other):
    """Returns True if two lists of batches are the same bits."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


# What is left


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 1},
        {"num_workers": 3},
        {"num_workers": 3, "in_order": False},
        {"num_workers": 2, "fetch_threads": 1},
        {"num_workers": 2, "fetch_threads": 3},
        *(
            pytest.param(
                {"num_workers": 1, "multiprocessing_context": method, "persistent_workers": True},
                marks=pytest.mark.thorough,
            )
            for method in ("forkserver", "spawn")
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Faulty, FaultyAtOnce])
def test_samples_that_raise_are_left_out(kind, options):
    """Batches are smaller by them, in the sampler's order, and one without samples is left out."""
    loader = DataLoader(tolerant(kind(COUNT, BAD)), 4, **options)

    for epoch in (1, 2):
        found = numbers(loader)
        assert LEFT == (found if options.get("in_order", True) else sorted(found))
        assert epoch * len(BAD) == loader.stats().left_out


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_leaves_them_out_too(workers):
    """Of a batch without samples it raises an error, and goes on behind it."""
    batches = iter(TORCHS(tolerant(Faulty(COUNT, BAD)), 4, num_workers=workers))
    first = numbers([next(batches), next(batches)])
    with pytest.raises(EmptyBatch, match="all samples of a batch of Faulty raised") as caught:
        next(batches)

    assert LEFT == first + numbers(batches)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "seed_by": "batch"},
        {"num_workers": 0, "seed_by": "batch"},
        {"num_workers": 2, "seed_by": "batch", "assignment": "dynamic"},
        {"num_workers": 2, "seed_by": "batch", "restarts": 1},
        {"num_workers": 2, "persistent_workers": True, "resumable": True},
        {"num_workers": 1, "device": shmloader.Device("cpu", transform=torch.clone)},
    ],
    ids=lambda options: " ".join(options),
)
@pytest.mark.parametrize("kind", [Faulty, FaultyAtOnce])
def test_order_and_draws_of_the_others_are_exact(options, kind):
    """They are those of a loader that leaves samples out when it collates, epoch after epoch."""
    rng = shmloader.rng if options.get("seed_by") == "batch" and kind is Faulty else None
    options = {"batch_size": 4, "shuffle": True, **options}
    dataset = kind(COUNT, BAD, rng=rng)
    whole = expected(dataset, **options)
    torch.manual_seed(11)
    loader = DataLoader(tolerant(dataset), **options)

    assert same(whole, list(loader))
    left = [index for batch in numbers(loader) for index in batch]
    assert [index for index in range(COUNT) if index not in BAD] == sorted(left)


@pytest.mark.parametrize("around", [lambda inside: inside, lambda inside: Subset(inside, range(9))])
@pytest.mark.parametrize("inside", [lambda inner: inner, lambda inner: Subset(inner, range(12))])
@pytest.mark.parametrize("threads", [0, 2])
def test_rng_is_each_samples_own(around, inside, threads):
    """A sample's own generator is the same whatever is around its dataset, on threads too."""
    options = {"batch_size": 4, "num_workers": 1, "seed_by": "batch", "fetch_threads": threads}
    made = around(tolerant(inside(Faulty(COUNT, BAD, rng=shmloader.rng))))
    torch.manual_seed(11)
    found = torch.cat(list(DataLoader(made, **options)))[:, -1]
    options["fetch_threads"] = 0
    whole = torch.cat(expected(Faulty(len(made), BAD, rng=shmloader.rng), **options))[:, -1]

    assert torch.equal(whole, found)


@pytest.mark.parametrize("bad", [range(COUNT), range(4, COUNT), range(COUNT - 1)], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_without_samples_in_a_row(bad, workers):
    """Any number of batches may be left out, also at the end of an epoch, or all of them."""
    loader = DataLoader(
        tolerant(Faulty(COUNT, bad)), 1, num_workers=workers, persistent_workers=workers > 0
    )
    left = [[index] for index in range(COUNT) if index not in bad]

    assert left == numbers(loader)
    assert left == numbers(loader)
    if workers:
        stats = loader.stats()
        assert [len(left)] * 2 == [epoch.batches for epoch in stats.epochs]
        assert 2 * len(left) == stats.batches == stats.next.count
        assert len(bad) == sum(worker.left_out for worker in stats.epochs[-1].workers)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_without_batches_the_sample_is_left_out(workers):
    """With `batch_size=None` a sample is a batch: ours goes on, torch's raises what it raised."""
    dataset = tolerant(Faulty(5, (1, 2)))
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)

    assert [0, 3, 4] == [int(sample[0]) for sample in loader]
    error = attempt(lambda: list(TORCHS(dataset, batch_size=None, num_workers=workers)))
    assert error.kind.endswith(".Unreadable") and "no sample 1" in error.text


# Resuming, and deaths


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", range(len(LEFT) + 1))
def test_a_resumed_run_goes_on(taken, workers):
    """From a state between any two batches come the others, with their draws."""
    options = {"batch_size": 4, "shuffle": True, "num_workers": workers, "seed_by": "batch"}
    dataset = tolerant(Faulty(COUNT, (*range(9), 11)))

    def made():
        return DataLoader(dataset, generator=torch.Generator().manual_seed(3), **options)

    whole, loader = list(made()), made()
    batches = iter(loader)
    first = [next(batches) for _ in range(min(taken, len(whole)))]
    other = made()
    other.load_state_dict(loader.state_dict())

    assert same(whole, first + list(other))


@pytest.mark.thorough
@pytest.mark.parametrize("seed_by", ["worker", "batch"])
def test_a_worker_that_dies_is_replaced(seed_by, tmp_path):
    """A death in a dataset that leaves samples out changes no batch, and is no sample's error."""
    options = {"batch_size": 4, "num_workers": 2, "seed_by": seed_by}
    whole = expected(Faulty(COUNT, BAD), **options)
    torch.manual_seed(11)
    loader = DataLoader(
        tolerant(DiesOnce(Faulty(COUNT, BAD), tmp_path / "died")), restarts=1, **options
    )
    with pytest.warns(shmloader.RestartWarning):
        batches = list(loader)

    assert same(whole, batches)


# Warnings


def caught(dataset, indices):
    """List the texts of the warnings when a batch is fetched here."""
    with warnings.catch_warnings(record=True, action="always") as found:
        dataset.__getitems__(indices)
    assert {LeftOutWarning} == {each.category for each in found}
    return [str(each.message) for each in found]


def test_a_warning_says_which_and_why_once_a_second(monkeypatch):
    """It has the dataset's class, the index, the error and the count."""
    now = 100.0
    monkeypatch.setattr(tolerances.time, "monotonic", lambda: now)
    dataset = tolerant(Faulty(COUNT, BAD))
    (text,) = caught(dataset, [4, 5, 6, 7, 8])
    now = 101.0
    (later,) = caught(dataset, [8, 9, 7])

    assert "Faulty[5] is skipped, 1 so far: " in text
    assert text.endswith("Unreadable: no sample 5")
    assert "Faulty[8] is skipped, 4 so far: " in later
    assert 5 == dataset.left_out


@pytest.mark.thorough
def test_a_worker_warns(capfd):
    """In a worker the warning names that worker, on stderr."""
    # A forked worker has pytest's filters.
    dataset = tolerant(Faulty(3, (1,)))
    list(DataLoader(dataset, 3, num_workers=1, multiprocessing_context="spawn"))

    error = capfd.readouterr().err
    assert "LeftOutWarning: worker 0: Faulty[1] is skipped, 1 so far: " in error


# What is raised all the same


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [DataLoader, TORCHS])
@pytest.mark.parametrize("kind", [Faulty, FaultyAtOnce])
def test_too_many_in_a_row_are_an_error(make, workers, kind):
    """Beyond `most_in_a_row` the sample's own error is raised, and says why."""
    loader = make(tolerant(kind(9, (0, 2, 3, 5, 6, 7)), 2), 9, num_workers=workers)
    with pytest.raises(Unreadable, match="no sample 7") as caught:
        list(loader)

    texts = [str(caught.value), *getattr(caught.value, "__notes__", ())]
    assert any("skipped the 2 samples before this one" in text for text in texts)
    forget_frames(caught.value)
    del caught  # which has them too


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, OutOfSharedMemory])
def test_what_is_no_error_of_a_sample_passes(kind):
    """Ctrl-C, the lack of room in a slot and the like are never left out, however samples come."""

    def make(index):
        raise kind("now")

    for dataset in (Computed(3, make), AtOnce(3, make)):
        with pytest.raises(kind):
            tolerant(dataset).__getitems__([0, 1])


class AtOnce(Computed):
    """Calls its function for a whole request."""

    def __getitems__(self, indices):
        return self.make(indices)


def test_the_death_of_another_loaders_worker_passes():
    """torch raises it in whatever runs, as from its handler of SIGCHLD here."""
    scope = {"__name__": "torch.utils.data._utils.signal_handling"}
    exec("def handler(index):\n    raise RuntimeError('DataLoader worker is killed')", scope)
    with pytest.raises(RuntimeError, match="worker is killed"):
        tolerant(Computed(3, lambda index: scope["handler"](index))).__getitems__([0, 1])


def test_one_sample_is_asked_for_by_its_index():
    """There is nothing to leave it out of: it raises what the dataset raises."""
    dataset = tolerant(Faulty(3, (1,)))
    with pytest.raises(Unreadable, match="no sample 1"):
        dataset[1]

    assert 2 == int(dataset[2][0])
    assert 0 == dataset.left_out


# Datasets that take a whole request


def test_only_a_request_that_raises_is_divided():
    """Each index is then asked for alone, with the generators as they were before."""
    requests = []

    class Asked(FaultyAtOnce):
        def __getitems__(self, indices):
            requests.append(list(indices))
            return super().__getitems__(indices)

    dataset = tolerant(Asked(8, (3,)))
    torch.manual_seed(1)
    first, second = dataset.__getitems__([0, 1]), dataset.__getitems__([2, 3, 4])
    torch.manual_seed(1)
    whole = [Faulty(8, ())[index] for index in (0, 1, 2)]

    assert [[0, 1], [2, 3, 4], [2], [3], [4]] == requests
    assert [sample[3].item() for sample in whole] == [each[3].item() for each in first + second[:1]]
    assert [[0], [1], [2], [4]] == numbers(sample[None] for sample in first + second)


def test_what_is_no_list_of_samples_cannot_be_divided():
    """An error says what to return, and where it began."""

    class Stacked(FaultyAtOnce):
        kind = staticmethod(torch.stack)

    dataset = tolerant(Stacked(8, (3,)))

    assert (2, 5) == dataset.__getitems__([0, 1]).shape
    with pytest.raises(TypeError, match=r"Stacked\.__getitems__ returned a Tensor for 1") as it:
        dataset.__getitems__([2, 3])
    assert isinstance(it.value.__cause__, Unreadable)


# Around and within others


@pytest.mark.thorough
def test_it_goes_around_a_cache():
    """What is kept is not fetched again, what raises is asked for each time."""
    memory = cached(Faulty(COUNT, BAD), 1 << 20)
    loader = DataLoader(tolerant(memory), 4, num_workers=2)

    assert [LEFT, LEFT] == [numbers(loader), numbers(loader)]
    (stats,) = loader.stats().caches
    assert COUNT - len(BAD) == stats.entries == stats.hits


def test_a_cache_around_it_is_refused():
    """It would take what is left for the whole."""
    with pytest.raises(TypeError, match=r"write tolerant\(cached\(Faulty, \.\.\.\)\)"):
        cached(tolerant(Faulty(3, ())), 1 << 20)


def test_it_goes_around_several():
    """Of datasets one behind the other, and of what `share()` changed."""
    inner = Computed(4, lambda index: [1, 2, 3, 4][index])
    inner.samples = [1, 2, 3, 4]
    dataset = tolerant(ConcatDataset([Faulty(4, (2,)), Faulty(3, (0,))]))
    shmloader.share(tolerant(inner), "dataset.samples")

    assert [[0, 1], [3], [1], [2]] == numbers(DataLoader(dataset, 2, num_workers=1))
    assert isinstance(inner.samples, shmloader.SharedList)
    assert isinstance(tolerant(inner).samples, shmloader.SharedList)


def test_one_within_another_counts_once():
    """The inner one leaves out, and the outer one passes on what is left."""
    inner = tolerant(Faulty(COUNT, BAD))
    loader = DataLoader(tolerant(inner), 4)

    assert LEFT == numbers(loader)
    assert len(BAD) == inner.left_out


# Iterable datasets


@pytest.mark.parametrize("make", [DataLoader, TORCHS])
@pytest.mark.parametrize("workers", [0, 2])
def test_of_a_stream_the_next_takes_the_place(make, workers):
    """Batches are full, and what is left comes in its order."""
    loader = make(tolerant(FaultyStream(12, (0, 3, 4))), 2, num_workers=workers)
    left = [[2, 6], [1, 5], [8, 10], [7, 9], [11]] if workers else [[1, 2], [5, 6], [7, 8], [9, 10]]

    assert left == numbers(loader)[: len(left)]
    assert 9 == sum(map(len, numbers(loader)))


@pytest.mark.thorough
def test_a_stream_goes_on_from_a_state():
    """The state of the iterator inside is that of the one around it."""
    options = {"batch_size": 2, "num_workers": 2, "resumable": True}
    dataset = tolerant(FaultyStream(14, (0, 3, 4, 9)))
    whole = numbers(DataLoader(dataset, **options))
    for taken in range(len(whole)):
        loader = DataLoader(dataset, **options)
        batches = iter(loader)
        first = numbers(next(batches) for _ in range(taken))
        other = DataLoader(dataset, **options)
        other.load_state_dict(loader.state_dict())

        assert whole == first + numbers(other)


def generated():
    """Ends with its first error, as generators do."""
    yield from (1 / (2 - index) for index in range(4))


def test_a_generator_cannot_go_on():
    """Its error is raised, and says what to do: the rest would be lost."""
    samples = iter(tolerant(Iterated(generated)))

    assert [0.5, 1.0] == [next(samples), next(samples)]
    with pytest.raises(ZeroDivisionError) as caught:
        next(samples)
    assert "a generator ends with its first error" in caught.value.__notes__[0]


def test_an_end_behind_an_error_is_told():
    """It may be that of a generator which cannot be seen."""
    with pytest.warns(LeftOutWarning, match="the iterator of Iterated ended after a sample"):
        samples = list(tolerant(Iterated(lambda: map(float, generated()))))

    assert [0.5, 1.0] == samples


@pytest.mark.parametrize("most", [0, 3])
def test_too_many_of_a_stream(most):
    """A stream that raises for ever ends with the error."""
    with pytest.raises(Unreadable, match=f"no sample {most}"):
        list(tolerant(FaultyStream(9, range(9)), most))


# What it looks like


def test_it_looks_like_the_dataset_inside():
    """Its length, and what else it has not itself, are that one's."""
    inner, stream, sized = Faulty(3, ()), FaultyStream(4, ()), Sized(4, ())
    made = tolerant(inner)
    for dataset in (made, copy.deepcopy(made), pickled(made)):
        assert (3, ("cat", "dog"), False) == (len(dataset), dataset.classes, dataset.marks)
        assert isinstance(dataset, Dataset)
        assert not hasattr(dataset, "state_dict")
    assert tolerant(inner).dataset is inner
    assert isinstance(tolerant(stream), IterableDataset)
    assert not hasattr(tolerant(stream), "__len__")
    assert 4 == len(tolerant(stream).samples)
    assert 7 == len(tolerant(sized))


class Sized(FaultyStream):
    """A stream with a length."""

    def __len__(self):
        return 7


@pytest.mark.parametrize(
    ("dataset", "most", "kind", "text"),
    [
        (IterableWrapper([1]), 1, TypeError, "would hide IterableWrapperIterDataPipe from torch"),
        (object(), 1, TypeError, "object has no __getitem__ and is not an IterableDataset"),
        (range(3), 1.5, TypeError, "most_in_a_row should be an int, but got 1.5"),
        (range(3), -1, ValueError, "most_in_a_row should be at least 0, but got -1"),
    ],
    ids=["a data pipe", "no dataset", "no int", "negative"],
)
def test_what_cannot_be_is_refused(dataset, most, kind, text):
    """Wrong arguments are errors when it is made."""
    with pytest.raises(kind, match=text):
        tolerant(dataset, most)
