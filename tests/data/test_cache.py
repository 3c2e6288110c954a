"""`cached()`: what it returns, keeps, counts and refuses, in one process and in many."""

import copy
import gc
import os
import pickle
import random
import warnings
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import shmloader
from shmloader import DataLoader, cached
from shmloader.data import cache_memory
from shmloader.memory import limits, policy
from shmloader.memory.account import account
from shmloader.memory.segment import default_ring_bytes
from shmloader.worker import seeds
from tests.conformance.sources import Making
from tests.helpers.copies import Child, WaitingChild
from tests.helpers.datasets import Computed, DiesOnce, Iterated
from tests.helpers.kept import AtOnce, Augment, Drawing, Fetched, content

ROOM = 8 << 20
COUNT = 24


def assert_whole(batches, count=COUNT):
    """Check that an epoch in order has every sample once, whole."""
    indices = [index for batch in batches for index in batch["index"].tolist()]
    assert list(range(count)) == indices
    for batch in batches:
        for row, index in zip(batch["data"], batch["index"].tolist(), strict=True):
            assert torch.equal(content(index), row)


def are_right(dataset, indices):
    return all(torch.equal(content(index), dataset[index]["data"]) for index in indices)


# What it returns


def test_a_sample_is_fetched_once():
    """The second time a sample is copied, and what was fetched and kept is counted."""
    fetched = Fetched(4)
    dataset = cached(fetched, ROOM)
    first, second = [[dataset[index] for index in range(4)] for _ in range(2)]

    assert [1, 1, 1, 1] == fetched.fetches.tolist()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.pop("data"), other.pop("data"))
        assert one == other
    stats = dataset.cache_stats()
    assert (4, 4, 4) == (stats.hits, stats.misses, stats.entries)
    assert 4 * 8 * 600 < stats.bytes < 4 * 8 * 600 + 4 * 512
    assert stats.bytes < stats.max_bytes <= ROOM


@pytest.mark.parametrize("room", [ROOM, 24 << 10], ids=["all fit", "few fit"])
@pytest.mark.parametrize("kind", ["one by one", "at once", "other indices"])
def test_a_sample_that_is_fetched_is_private_too(room, kind):
    """Samples that lie in the dataset's own memory, as windows of a series do, may be changed."""
    series = torch.arange(4000.0)
    windows = Computed(12, lambda index: series[int(index) : int(index) + 3000])
    if kind == "at once":
        windows.__getitems__ = lambda indices: [windows[index] for index in indices]
    dataset = cached(windows, room, lambda sample: sample.sub_(sample[0].item()))
    for _ in range(2):
        for index in range(12):
            if kind == "at once":
                (found,) = dataset.__getitems__([index])
            else:
                found = dataset[index if kind == "one by one" else str(index)]
            assert torch.equal(torch.arange(3000.0), found)

    assert torch.equal(torch.arange(4000.0), series)


def test_cold_and_warm_samples_are_the_same():
    """What the copying of a sample changes, such as its byte order, it changes the first time."""
    dataset = cached(Computed(1, lambda index: numpy.arange(3, dtype=">i4")), ROOM)
    cold, warm = dataset[0], dataset[0]

    assert cold.dtype.str == warm.dtype.str
    assert cold.tobytes() == warm.tobytes()


def test_transform_runs_at_each_access():
    """A transform gets the sample that was fetched or copied, and may change it."""
    seen = []

    def transform(sample):
        seen.append(sample["name"])
        sample["data"].add_(len(seen))
        return sample["data"][0].item()

    dataset = cached(Fetched(2), ROOM, transform)

    assert [100_001, 100_002, 100_003] == [dataset[1] for _ in range(3)]
    assert ["sample 1"] * 3 == seen


@pytest.mark.parametrize("index", [-1, numpy.int64(2), torch.tensor(2), True + 1])
def test_an_index_of_any_integer_type_is_the_same(index):
    """Negative numbers, numpy's and torch's lead to the same sample."""
    fetched = Fetched(3)
    dataset = cached(fetched, ROOM)
    dataset[2]

    assert "sample 2" == dataset[index]["name"]
    assert [0, 0, 1] == fetched.fetches.tolist()


def test_other_indices_are_the_datasets_own_matter():
    """What is no number in range is passed on each time, with the dataset's own error."""
    dataset = cached(Computed(3, lambda index: ("got", index)), ROOM)

    assert [("got", 5)] * 2 == [dataset[5], dataset[5]]
    assert [("got", (1, 2)), ("got", "a"), ("got", -4)] == [
        dataset[1, 2],
        dataset["a"],
        dataset[-4],
    ]
    assert 0 == dataset.cache_stats().entries
    with pytest.raises(IndexError, match="no sample 3"):
        cached(Fetched(3), ROOM)[3]


def test_it_looks_like_the_dataset_inside():
    """Length, attributes and type are a dataset's; wrappers of torch's work on it."""
    fetched = Fetched(6)
    dataset = cached(fetched, ROOM)

    assert isinstance(dataset, Dataset)
    assert (6, ("cat", "dog"), fetched) == (len(dataset), dataset.classes, dataset.dataset)
    assert not hasattr(dataset, "__getitems__")
    assert not hasattr(dataset, "colours")
    assert "sample 4" == Subset(dataset, [4, 5])[0]["name"]
    assert "sample 1" == (dataset + dataset)[7]["name"]
    assert isinstance(dataset + dataset, ConcatDataset)


# Several at once


def test_only_what_is_missing_is_fetched_at_once():
    """A dataset's __getitems__ is asked for what is not there, and samples come in order."""
    fetched = AtOnce(6)
    dataset = cached(fetched, ROOM, lambda sample: sample["index"])
    dataset[3]

    assert [2, 3, 4] == dataset.__getitems__([2, 3, 4])
    assert [5, 4, 3, 5] == dataset.__getitems__([5, 4, 3, 5])
    assert [[2, 4], [5, 5]] == fetched.requests
    assert [0, 1] == Subset(dataset, [0, 1]).__getitems__([0, 1])
    assert 6 == dataset.cache_stats().entries


def test_a_batch_that_is_no_list_of_samples_is_refused():
    """What __getitems__ returns must be a sample for each index."""
    dataset = cached(AtOnce(6, kind=iter), ROOM)
    short = cached(AtOnce(6, kind=lambda samples: list(samples)[1:]), ROOM)

    with pytest.raises(TypeError, match=r"AtOnce\.__getitems__ returned a generator for 2 indices"):
        dataset.__getitems__([0, 1])
    with pytest.raises(TypeError, match="returned a list for 2 indices"):
        short.__getitems__([0, 1])


# How much it keeps


def test_what_fits_is_found_and_the_rest_is_fetched():
    """With less memory than data the share of hits is the share that fits, in every later epoch."""
    data_bytes = 200 * (8 * 600 + 192)
    fetched = Fetched(200)
    dataset = cached(fetched, data_bytes // 2 + (8 << 10))
    for _ in range(3):
        for index in range(200):
            assert torch.equal(content(index), dataset[index]["data"])
    stats = dataset.cache_stats()

    assert abs(stats.entries - 100) <= 5
    assert 2 * stats.entries == stats.hits
    assert {1, 3} == set(fetched.fetches.tolist())
    assert stats.bytes <= stats.max_bytes <= data_bytes // 2 + (8 << 10)


@pytest.mark.thorough
def test_samples_larger_than_a_piece_and_than_all():
    """A sample of any size is kept if it fits into what is left, and otherwise fetched."""
    sizes = [10, 3_000_000, 20, 9_000_000, 30, 4_000_000, 2_000_000, 40]
    dataset = cached(Computed(len(sizes), lambda index: torch.zeros(sizes[index])), 40_000_000)
    for _ in range(2):
        assert sizes == [len(dataset[index]) for index in range(len(sizes))]
    stats = dataset.cache_stats()

    # 36 MB do not fit beside the 12 MB that were there first; all others do.
    assert (len(sizes) - 1, len(sizes) - 1) == (stats.entries, stats.hits)


def test_a_view_takes_no_more_than_it_shows():
    """Of a column only the column is kept, as in a batch."""
    dataset = cached(Computed(1, lambda _: torch.ones(1000, 1000)[:, 3]), 4_000_000)
    dataset[0]

    assert dataset.cache_stats().bytes < 8192
    assert torch.equal(torch.ones(1000), dataset[0])


def test_a_sample_that_cannot_be_kept_is_fetched_each_time():
    """It comes as it is, with one warning that names the part; others are kept."""
    dataset = cached(Computed(3, lambda index: {"f": (lambda: index) if index else 0}), ROOM)
    with pytest.warns(UserWarning, match=r"fetches sample 1 each time.*sample\['f'\] \(function\)"):
        assert 1 == dataset[1]["f"]()
    with warnings.catch_warnings(action="error"):
        assert [2, 1] == [dataset[2]["f"](), dataset[1]["f"]()]
    dataset[0]

    assert 1 == dataset.cache_stats().entries


@pytest.mark.parametrize("max_bytes", [0, -1, 1, 4096, 1.5, "1", None])
def test_no_room_at_all_is_an_error(max_bytes):
    """A cache that can hold nothing, or no number of bytes, is refused, with what it was."""
    is_int = type(max_bytes) is int
    text = "" if is_int else "max_bytes should be an int, but got "
    with pytest.raises(ValueError if is_int else TypeError, match=f"{text}.*{max_bytes!r}"):
        cached(Fetched(10), max_bytes)


def test_an_index_that_takes_all_is_an_error():
    """The words of a huge dataset count, and the error says how many bytes they take."""
    dataset = Computed(10_000_000, lambda index: index)

    with pytest.raises(ValueError, match="next to 80000000 bytes of index for 10000000 of them"):
        cached(dataset, 80_000_000)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [(Iterated(list), "stores samples by index"), (Making(), "no __len__"), (3, "index")],
)
def test_what_has_no_length_or_index_is_refused(dataset, text):
    """Only a map-style dataset with a length can be kept."""
    with pytest.raises(TypeError, match=text):
        cached(dataset, ROOM)


def test_more_than_there_is_becomes_less_with_the_numbers(monkeypatch):
    """A cache takes at most three quarters of what is left, and says so."""
    here = limits.Available(100_000_000, "on this machine")
    monkeypatch.setattr(limits, "available", lambda: here)
    with pytest.warns(
        UserWarning,
        match=r"at most 75\.0 MB instead of max_bytes=900000000 .*"
        r"because 100\.0 MB are left to process \d+ on this machine",
    ):
        dataset = cached(Fetched(10), 900_000_000)

    assert 74_900_000 < dataset.cache_stats().max_bytes <= 75_000_000


def test_ranks_of_a_machine_share_what_is_left(monkeypatch):
    """Each rank that torchrun started takes its part."""
    here = limits.Available(100_000_000, "on this machine")
    monkeypatch.setattr(limits, "available", lambda: here)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.warns(UserWarning, match="for each of 4 ranks"):
        dataset = cached(Fetched(10), 30_000_000)

    assert 18_700_000 < dataset.cache_stats().max_bytes <= 18_750_000


def test_a_second_cache_counts_what_the_first_may_still_take(monkeypatch):
    """What one cache has not taken yet is not left to the next."""
    here = limits.Available(100_000_000, "on this machine")
    monkeypatch.setattr(limits, "available", lambda: here)
    first = cached(Fetched(10), 60_000_000)
    with pytest.warns(UserWarning, match="at most 30.0 MB"):
        second = cached(Fetched(10), 60_000_000)

    assert first.cache_stats().number + 1 == second.cache_stats().number


def test_it_does_not_grow_while_memory_is_short(monkeypatch):
    """Then samples are fetched, that is counted, and it grows again when there is room."""
    fetched = Fetched(40)
    dataset = cached(fetched, ROOM)
    left = [0]
    monkeypatch.setattr(limits, "available_bytes", lambda: left[0])
    monkeypatch.setattr(policy, "CACHE_LOOK_AGAIN_S", 0.0)
    for index in range(40):
        dataset[index]
    short = dataset.cache_stats()
    left[0] = 1 << 50
    for index in range(40):
        dataset[index]

    assert (0, 40) == (short.entries, short.refused)
    assert 40 == dataset.cache_stats().entries


def test_a_worker_leaves_room_for_the_batches_of_others(monkeypatch):
    """In a worker a cache stops before the batches of the other workers would be refused."""
    dataset = cached(Fetched(40), ROOM)
    workers = 8
    needed = policy.reserve_bytes(workers)
    monkeypatch.setattr(policy, "CACHE_LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(dataset._memory._room, "_left_bytes", 0)
    monkeypatch.setattr(limits, "available_bytes", lambda: needed)
    info = SimpleNamespace(num_workers=workers)
    monkeypatch.setattr(cache_memory, "get_worker_info", lambda: info)
    dataset[0]
    in_worker = dataset.cache_stats().entries
    monkeypatch.setattr(cache_memory, "get_worker_info", lambda: None)
    dataset[0]

    assert (0, 1) == (in_worker, dataset.cache_stats().entries)


def test_a_child_without_descriptors_reads_and_fetches():
    """A daemon that closed all files finds what is there; it adds no pages to a file of its own."""
    dataset = cached(Fetched(40), ROOM)
    for index in range(20):
        dataset[index]

    def read_without_descriptors():
        os.closerange(3, 256)  # also what tells more of a failure than the exit code
        files = [os.open("/dev/null", os.O_RDWR) for _ in range(30)]
        assert files and are_right(dataset, range(40))
        os._exit(0)

    Child(read_without_descriptors).end()
    stats = dataset.cache_stats()

    assert (20, 20, 40) == (stats.entries, stats.hits, stats.misses)
    assert 20 == stats.refused


def test_rings_leave_it_room():
    """The default of ring_bytes is half of what the data that is kept leaves."""
    gc.collect()  # caches of other tests
    before, kept = default_ring_bytes(), account().kept_bytes
    dataset = cached(Fetched(10), 64 << 20)

    assert before - (32 << 20) == default_ring_bytes()
    assert kept + (64 << 20) == account().kept_bytes
    del dataset
    gc.collect()
    assert before == default_ring_bytes()


# Draws


def test_an_error_leaves_every_generator_as_it_was():
    """They are put back after an error, too."""

    def make(index):
        random.random()
        raise ValueError

    before = random.getstate()
    with pytest.raises(ValueError):
        cached(Computed(1, make), ROOM)[0]

    assert before == random.getstate()


@pytest.mark.parametrize("drawn_before", [0, 1, 3])
def test_rng_is_put_back(drawn_before):
    """rng() goes on after a fetch as if the dataset had not drawn, whether it was made before."""
    found = []
    dataset = cached(Drawing(1, seeds.rng), ROOM, Augment(seeds.rng))
    for _ in range(2):
        with seeds.taking(seeds.Turn((1, 2, 3), None, 4)):
            own = seeds.rng() if drawn_before else None
            for _ in range(drawn_before):
                own.integers(10, dtype=numpy.int32)  # which keeps half of its bits
            _, augmented = dataset[0]
            found.append((augmented[3].item(), seeds.rng().random()))
            assert own is None or own is seeds.rng()

    assert found[0] == found[1]


MODES = [
    {"num_workers": 0},
    {"num_workers": 0, "seed_by": "batch"},
    {"num_workers": 2},
    {"num_workers": 2, "seed_by": "batch"},
    {"num_workers": 2, "seed_by": "batch", "assignment": "dynamic"},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.mark.thorough
@pytest.mark.parametrize("options", MODES, ids=str)
def test_warm_epochs_draw_as_cold_ones(options):
    """What a transform draws is the same in a cold epoch and in a warm one."""
    rng = seeds.rng if options.get("seed_by") else None
    dataset = cached(Drawing(COUNT, rng), ROOM, Augment(rng))
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        random.seed(5)
        numpy.random.seed(5)
        with DataLoader(dataset, batch_size=4, shuffle=True, **options) as loader:
            runs.append([batch for _ in range(2) for batch in loader])

    assert (COUNT, COUNT) == (dataset.cache_stats().entries, dataset.cache_stats().misses)
    for cold, warm in zip(*runs, strict=True):
        assert torch.equal(cold[0], warm[0])
        assert torch.equal(cold[1], warm[1])


# Many processes

STARTS = [("fork", False), ("spawn", True), ("fork", True), ("forkserver", False)]


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "persistent"), STARTS)
def test_workers_share_what_each_has_fetched(method, persistent):
    """Every sample is fetched once for all workers, and for all epochs of the next loader too."""
    fetched = Fetched(COUNT)
    dataset = cached(fetched, ROOM)
    options = {"num_workers": 2, "multiprocessing_context": method}
    for _ in range(2):
        with DataLoader(dataset, batch_size=4, persistent_workers=persistent, **options) as loader:
            for _ in range(2):
                assert_whole(list(loader))
            stats = loader.stats()

    assert [1] * COUNT == fetched.fetches.tolist()
    (found,) = stats.caches
    assert ("Fetched", 3 * COUNT, COUNT, COUNT) == (
        *(found.label, found.hits, found.misses, found.entries),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_replacements_share_it_too(method, tmp_path):
    """A worker that dies is replaced by one that finds what was kept."""
    dataset = cached(DiesOnce(Fetched(COUNT), tmp_path / "died"), ROOM)
    options = {"num_workers": 2, "multiprocessing_context": method, "restarts": 2}
    options["persistent_workers"] = method != "fork"  # each start imports torch
    with DataLoader(dataset, batch_size=4, **options) as loader:
        with pytest.warns(shmloader.RestartWarning):
            assert_whole(list(loader))
        assert_whole(list(loader))

    assert COUNT == dataset.cache_stats().entries


# Its life


def blocks_of(dataset):
    """Bytes of pages that the memory of a cache has."""
    return os.fstat(dataset._memory._samples.descriptor).st_blocks * 512


def test_close_gives_the_memory_back():
    """Pages go at once, and from then on samples are fetched."""
    fetched = Fetched(100)
    dataset = cached(fetched, ROOM)
    for index in range(100):
        dataset[index]
    before = blocks_of(dataset)
    dataset.close()
    dataset.close()

    assert before > 400_000
    assert blocks_of(dataset) < 40_000
    assert [torch.equal(content(7), dataset[7]["data"]) for _ in range(2)] == [True, True]
    assert 3 == fetched.fetches[7]


def test_only_its_maker_closes_it():
    """close() in a forked child does nothing to the parent; the parent's reaches the child."""
    dataset = cached(Fetched(10), ROOM)
    dataset[1]

    def look():
        return dataset[1]["name"], dataset._memory._samples.is_closed

    Child(dataset.close).end()
    later = WaitingChild(look)
    assert ("sample 1", False) == look()
    assert 1 == dataset.cache_stats().hits
    dataset.close()

    assert repr(("sample 1", True)) == later.end()


def test_it_is_pickled_for_processes_that_start_alone():
    """At other times there is no process to hand the memory to, and the error says what to do."""
    dataset = cached(Fetched(3), ROOM)

    with pytest.raises(TypeError, match=r"cannot be pickled at other times: pickle its \.dataset"):
        pickle.dumps(dataset)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_shares_the_memory(copied):
    """A copied dataset finds what the first has kept."""
    fetched = Fetched(3)
    dataset = cached(fetched, ROOM)
    dataset[1]
    other = copied(dataset)

    assert "sample 1" == other[1]["name"]
    assert 1 == dataset.cache_stats().hits
