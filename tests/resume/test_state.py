"""The state itself: its keys and size, when it may be asked for, and which states are refused."""

import copy
import json
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

import shmloader
from shmloader import DataLoader
from shmloader.order.resuming import states
from tests.helpers.warned import recorded
from tests.resume.interrupted import (
    BATCH,
    BATCHES,
    COUNT,
    Drawing,
    Stream,
    generator_of,
    gone_on,
    left,
    opened,
)

KB = 1024


def state_at(position, dataset=Drawing, **options):
    """The state after so many batches; None: before iter()."""
    loader = opened(dataset(), options)
    return loader.state_dict() if position is None else left(loader, position)[0]


MOMENTS = (None, 0, 1, BATCHES)


@pytest.mark.parametrize("workers", [0, 2])
def test_keys_are_always_the_same(workers):
    """Before, in and behind an epoch, with plain values that torch.load() takes without code."""
    taken = [state_at(position, num_workers=workers) for position in MOMENTS]

    assert [list(states.UNSET)] * len(MOMENTS) == [list(state) for state in taken]
    assert {int, str, bool, list, dict, type(None)} >= {
        type(value) for state in taken for value in state.values()
    }


@pytest.mark.parametrize("position", MOMENTS)
def test_a_state_by_batch_is_small_and_text(position):
    """It takes less than 4 KB, as a pickle and as JSON."""
    state = state_at(position, num_workers=1)

    assert len(pickle.dumps(state)) < 4 * KB
    assert len(json.dumps(state)) < 4 * KB
    assert state == json.loads(json.dumps(state))


def test_a_resumable_state_takes_8_kb_a_worker():
    """All three generators of each worker were drawn from."""
    state = state_at(4, num_workers=2, seed_by="worker", resumable=True)

    assert 2 * 7 * KB < len(pickle.dumps(state)) < (4 + 2 * 8) * KB


def test_a_worker_that_has_delivered_nothing_has_no_state():
    """Nothing was drawn in it that anyone has seen: it begins as any worker does."""
    states_at = [
        state_at(position, num_workers=2, seed_by="worker", resumable=True)["worker_states"]
        for position in (0, 1)
    ]

    assert [[], [False, True]] == [[each is None for each in found] for found in states_at]


def test_a_state_is_a_copy():
    """What is done to it, and later batches, change nothing of each other."""
    with opened(Drawing(), {"num_workers": 1}) as loader:
        iterator = iter(loader)
        next(iterator)
        first = loader.state_dict()
        kept = copy.deepcopy(first)
        next(iterator)
        second = loader.state_dict()
        second["generators"].clear()

        assert first == kept
        assert 2 == loader.state_dict()["drawn"]
        assert loader.state_dict()["generators"]


def test_asking_draws_and_starts_nothing():
    """A loader that is only asked has no worker, and no generator moves."""
    generator = generator_of()
    with DataLoader(Drawing(), 3, shuffle=True, num_workers=2, generator=generator) as loader:
        before = torch.get_rng_state(), generator.get_state()
        loader.state_dict()
        after = torch.get_rng_state(), generator.get_state()

        assert all(map(torch.equal, before, after))
        assert loader._iterator is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_from_before_the_first_epoch_begins_it(workers):
    """Its batches are those of a loader that loads nothing."""
    with opened(Drawing(), {"num_workers": workers}) as loader:
        state, expected = loader.state_dict(), [batch.tolist() for batch in loader]

    assert expected == gone_on(opened(Drawing(), {"num_workers": workers}), state)


def test_an_empty_state_forgets_one_that_was_loaded():
    """As with torchdata's loader."""
    with opened(Drawing(), {}) as loader:
        loader.load_state_dict(state_at(3))
        loader.load_state_dict({})

        assert BATCHES == len(list(loader))


def test_closing_keeps_the_place():
    """A loader that was closed says where it was, and goes on there."""
    with opened(Drawing(), {"num_workers": 2}) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.close()
        state = loader.state_dict()
        loader.load_state_dict(state)

        assert 1 == state["drawn"]
        assert BATCHES - 1 == len(list(loader))


def test_a_finished_epoch_may_be_said_to_be():
    """Accelerate writes into the dictionary that the epoch was finished: the next one comes."""
    state = {**state_at(3, num_workers=1), "_iterator_finished": True}
    assert BATCHES == len(gone_on(opened(Drawing(), {"num_workers": 1}), state))


OTHERS = {
    "length": (
        lambda: {"dataset": range(COUNT + 1)},
        f"dataset {COUNT}, and here it is {COUNT + 1}",
    ),
    "batch_size": (lambda: {"batch_size": BATCH + 1}, "batch_size 3, and here it is 4"),
    "drop_last": (lambda: {"drop_last": True}, "drop_last 0, and here it is 1"),
    "seed_by": (
        lambda: {"seed_by": "worker"},
        "'batch', and here it is 'worker'.*num_workers=\"auto\" implies",
    ),
    "sampler": (
        lambda: {"shuffle": False},
        r"BatchSampler of RandomSampler\(23 samples\)'.*SequentialSampler'",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_loader_refuses_it(name):
    """The error names both sides, and the loader is as it was."""
    make, words = OTHERS[name]
    options = {"dataset": Drawing(), "batch_size": BATCH, "shuffle": True, "seed_by": "batch"}
    loader = DataLoader(**{**options, **make()})
    before = loader.state_dict()
    with pytest.raises(ValueError, match=words):
        loader.load_state_dict(state_at(2))

    assert before == loader.state_dict()
    assert len(loader) == len(list(loader))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shmloader": 99}, "version 99.*versions up to 2"),
        ({"shmloader": None}, "no loader of shmloader has saved"),
        ({"recipe": 99}, "recipe for seeds 99, and here it is 1"),
        ({"drawn": "4"}, "damaged: drawn is '4'"),
        ({"low": 5}, "damaged"),
        ({"epoch": -1}, "damaged: epoch is -1"),
        ({"base_seed": -1}, "damaged: base_seed is -1"),
        ({"drawn": 2**63}, "damaged: drawn is 9223372036854775808"),
        ({"last_worker": -(2**70)}, "damaged: last_worker is -1180591620717411303424"),
        ({"by_worker": ["2"]}, "damaged: by_worker is .'2'.,"),
        ({"missing": "====", "low": 0}, "damaged"),
        ({"generators": {"sampler": "AAAA"}}, "sampler generator is damaged"),
        ({"at": "somewhere"}, "damaged"),
        ({"worker_states": 3}, "damaged"),
        *(
            ({key: ...}, f"damaged: it has no {key}$")
            for key in ("base_seed", "generators", "checksum", "at")
        ),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(change, words):
    """Before anything of it is used; so is one that lacks something, which is another place."""
    state = {key: each for key, each in {**state_at(2), **change}.items() if each is not ...}
    with opened(Drawing(), {}) as loader:
        with pytest.raises(ValueError, match=words):
            loader.load_state_dict(state)

        assert BATCHES == len(list(loader))


VERSION_1 = json.loads(Path(__file__).with_name("version_1.json").read_text())


@pytest.mark.parametrize("name", VERSION_1)
def test_a_state_of_version_1_is_read(name):
    """
    Stored ones are followed by the batches that came then.

    With workers, one of the last step was like one taken after the loop: the next epoch comes.
    """
    state, epochs = VERSION_1[name]["state"], VERSION_1[name]["epochs"]
    assert state["elapsed_ms"] > 0
    with DataLoader(
        range(20), 5, shuffle=True, generator=generator_of(8), seed_by="batch"
    ) as loader:
        loader.load_state_dict(state)

        assert list(states.UNSET) == list(loader.state_dict())
        assert epochs == [[batch.tolist() for batch in loader] for _ in epochs]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_place_behind_the_end_is_refused_at_iter(workers):
    """Also of a sampler that jumps there, whose draws are compared with nothing."""
    with DataLoader(range(12), 2, num_workers=workers, seed_by="batch") as loader:
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict({**state, "low": 1000, "drawn": 1000})
        with pytest.raises(ValueError, match="ended before batch 1000"):
            iter(loader)


def test_what_is_no_state_is_refused():
    """torchdata's dictionary, and what is no dictionary at all."""
    with opened(Drawing(), {}) as loader:
        with pytest.raises(ValueError, match=r"keys _snapshot.*torchdata"):
            loader.load_state_dict({"_snapshot": {}})
        with pytest.raises(TypeError, match="got list"):
            loader.load_state_dict([])


def test_another_order_is_refused_at_iter():
    """A sampler whose draws cannot be repeated: the checksum says so, and what to do."""

    class Own:
        def __init__(self):
            self.generator = None

        def __iter__(self):
            yield from __import__("random").sample(range(COUNT), COUNT)

        def __len__(self):
            return COUNT

    state, _ = left(DataLoader(Drawing(), BATCH, sampler=Own(), num_workers=1))
    with DataLoader(Drawing(), BATCH, sampler=Own(), num_workers=1) as loader:
        with warnings.catch_warnings(action="ignore"):
            loader.load_state_dict(state)
        with pytest.raises(ValueError, match="its own generator"):
            iter(loader)


def open_at(epoch, rank=1, **options):
    sampler = DistributedSampler(range(COUNT), num_replicas=2, rank=rank)
    sampler.set_epoch(epoch)
    return DataLoader(Drawing(), BATCH, sampler=sampler, seed_by="batch", **options)


@pytest.mark.parametrize("rank", [0, 1])
def test_another_epoch_of_a_distributed_sampler_is_refused_at_iter(rank):
    """The error names the epoch to set, to another rank too; set there, the loader goes on."""
    state, expected = left(open_at(3, num_workers=1))
    with open_at(2, rank, num_workers=1) as loader:
        with warnings.catch_warnings(action="ignore"):
            loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"call set_epoch\(3\) first"):
            iter(loader)
        loader.sampler.set_epoch(3)

        assert (rank == 1) == (expected == [batch.tolist() for batch in loader])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_a_distributed_sampler_that_was_told_no_epoch_is_told(workers, whole):
    """Lightning tells it only behind iter(); what comes is still the state's epoch, or the next."""
    with open_at(3) as loader:
        iterator = iter(loader)
        next(iterator)
        state, expected = loader.state_dict(), [batch.tolist() for batch in iterator]
        if whole:
            state = loader.state_dict()
            loader.sampler.set_epoch(4)
            expected = [batch[:, 0].tolist() for batch in loader]
    with open_at(0, num_workers=workers) as loader:
        loader.load_state_dict(state)
        found = list(loader)

        assert expected == [(batch[:, 0] if whole else batch).tolist() for batch in found]
        assert 3 + whole == loader.sampler.epoch
        loader.sampler.set_epoch(1)
        with pytest.warns(UserWarning, match=rf"call set_epoch\({4 + whole}\) now"):
            iter(loader)
        iter(loader)  # once


def test_another_ranks_state_is_said_to_be():
    """Lightning saves rank 0's for all: position and seeds are taken, the checksum is not."""
    loader, other = open_at(0, rank=0), open_at(0)
    next(iter(loader))
    with pytest.warns(UserWarning, match="rank 0 of 2"):
        other.load_state_dict(loader.state_dict())
    rest = [index for batch in other for index in batch[:, 0].tolist()]

    assert list(open_at(0).sampler)[BATCH:] == rest


@pytest.mark.thorough
def test_draws_that_begin_anew_are_said_to():
    """Without snapshots the order goes on; one warning says what would keep the draws."""
    state = state_at(4, num_workers=2, seed_by="worker")
    with opened(Drawing(), {"num_workers": 2, "seed_by": "worker"}) as loader:
        with pytest.warns(UserWarning, match="not contain the random states of work") as warned:
            loader.load_state_dict(state)
        rest = [sample for batch in loader for sample in batch.tolist()]
    _, whole = left(opened(Drawing(), {"num_workers": 2, "seed_by": "worker"}), 0)
    whole = [sample for batch in whole for sample in batch]

    assert 1 == len(warned)
    assert [sample[0] for sample in whole[4 * BATCH :]] == [sample[0] for sample in rest]
    assert not {tuple(sample[1:]) for sample in whole} & {tuple(sample[1:]) for sample in rest}


@pytest.mark.parametrize(("saved", "resumed"), [(2, 0), (0, 2)])
def test_the_training_process_draws_otherwise_than_workers(saved, resumed):
    """Torch seeds workers by their ids, and num_workers=0 not at all: neither repeats the other."""
    state = state_at(4, num_workers=saved, seed_by="worker")
    with opened(Drawing(), {"num_workers": resumed, "seed_by": "worker"}) as loader:
        words = f"begin again.* num_workers={saved}, and here num_workers={resumed}"
        with pytest.warns(UserWarning, match=words):
            loader.load_state_dict(state)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_at_an_epochs_end_draws_are_lost_if_workers_live_on(behind, persistent):
    """Others are seeded anew for the next epoch, as in an undisturbed run: then nothing is said."""
    options = {"num_workers": 2, "seed_by": "worker", "persistent_workers": persistent}
    with opened(Drawing(), options) as loader:
        for _ in loader:
            state = loader.state_dict()
        if behind:
            state = loader.state_dict()
    with opened(Drawing(), options) as loader, recorded() as told:
        loader.load_state_dict(state)

        assert persistent == any("numbers of the dataset begin again" in str(each) for each in told)


def test_functions_take_a_loader_and_what_holds_it():
    """shmloader.state_dict() and load_state_dict() do what the methods do."""
    state = state_at(3)
    loader = opened(Drawing(), {})
    shmloader.load_state_dict({"train": loader}, state)

    assert state == shmloader.state_dict([loader])
    for none in ([], [loader, opened(Drawing(), {})], torch.utils.data.DataLoader(Drawing())):
        with pytest.raises(TypeError, match="DataLoader"):
            shmloader.state_dict(none)


def test_a_loader_of_torchs_class_that_is_served():
    """It has no methods of ours; the functions save its place and restore it."""

    def open_torchs():
        return torch.utils.data.DataLoader(Drawing(), BATCH, shuffle=False, num_workers=1)

    shmloader.install(seed_by="batch")
    try:
        loader = open_torchs()
        next(iter(loader))
        state = shmloader.state_dict(loader)
        shmloader.close(loader)
        other = open_torchs()
        shmloader.load_state_dict(other, state)
        rest = [sample for batch in other for sample in batch[:, 0].tolist()]
        shmloader.close(other)

        assert not hasattr(other, "state_dict")
        assert list(range(BATCH, COUNT)) == rest
    finally:
        shmloader.uninstall()


def test_batch_samplers_of_users_are_described():
    """The kind of a sampler is what decides its order, as far as that can be seen."""
    dataset = Drawing()
    own = BatchSampler(SequentialSampler(dataset), 2, drop_last=True)
    random = RandomSampler(dataset, replacement=True, num_samples=5)
    found = [
        DataLoader(dataset, batch_sampler=own).state_dict()["sampler"],
        DataLoader(dataset, sampler=random).state_dict()["sampler"],
        DataLoader(Stream()).state_dict()["sampler"],
    ]

    assert [
        "BatchSampler of SequentialSampler",
        "BatchSampler of RandomSampler(with replacement, 5 samples)",
        "",
    ] == found


def test_threads_cannot_repeat_a_workers_draws():
    """resumable=True with threads needs draws that belong to the batch."""
    options = {"num_workers": 1, "fetch_threads": 2, "resumable": True}
    with pytest.raises(ValueError, match=r"fetch_threads=2 with resumable=True needs seed_by"):
        DataLoader(Drawing(), **options)

    DataLoader(Drawing(), seed_by="batch", **options)


def test_an_assignment_by_chance_keeps_no_draws():
    """It is said when the loader is made."""
    options = {"num_workers": 2, "assignment": "dynamic", "resumable": True}
    with pytest.warns(UserWarning, match="a resumed run repeats the batches and their order"):
        DataLoader(Drawing(), **options)
