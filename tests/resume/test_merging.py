"""States of all ranks, merged, go on in another number of ranks with the samples that are left."""

import itertools
import json
import math
import pickle
import random
import warnings
from collections import Counter
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from shmloader import DataLoader, merge_states
from shmloader.order import samplers
from shmloader.order.resuming import states
from tests.helpers.datasets import Computed
from tests.resume.interrupted import Stream, drawn, generator_of, gone_on, quiet, stored

LENGTH, STEP = 50, 12


class Division(NamedTuple):
    """How an epoch is divided: among how many ranks, in which order, and what is dropped."""

    ranks: int
    length: int = LENGTH
    step: int = STEP
    shuffle: bool = True
    drop_uneven: bool = False
    drop_last: bool = False
    seed: int = 3

    @property
    def batch_size(self):
        return self.step // self.ranks

    def sampler(self, rank, epoch=0, dataset=None):
        """torch's sampler of a rank."""
        sampler = DistributedSampler(
            *(range(self.length) if dataset is None else dataset, self.ranks, rank),
            shuffle=self.shuffle,
            seed=self.seed,
            drop_last=self.drop_uneven,
        )
        sampler.set_epoch(epoch)
        return sampler

    def epoch(self, epoch=0):
        """What torch alone gives each rank: its batches, lists of indices."""
        size, drops = self.batch_size, self.drop_last
        samplers = [self.sampler(rank, epoch) for rank in range(self.ranks)]
        return [list(BatchSampler(sampler, size, drops)) for sampler in samplers]

    def loaders(self, epoch=0, dataset=None, **options):
        """Loaders of ours, one of each rank."""
        dataset = range(self.length) if dataset is None else dataset
        settings = {"drop_last": self.drop_last, "seed_by": "batch", **options}
        return [
            DataLoader(
                dataset,
                self.batch_size,
                sampler=self.sampler(rank, epoch, dataset),
                **settings,
            )
            for rank in range(self.ranks)
        ]

    def interrupted(self, position, epoch=0, **options):
        """Loaders whose ranks were each given so many batches, and those of each."""
        loaders = self.loaders(epoch, **options)
        return loaders, [took(loader, position) for loader in loaders]


def took(loader, position):
    """The next batches of a loader that begins, lists of indices."""
    iterator = iter(loader)
    return [next(iterator).tolist() for _ in range(position)]


def whole(loader):
    """What is left of a loader's epoch, or its next one."""
    return [batch.tolist() for batch in loader]


def states_of(loaders):
    return [loader.state_dict() for loader in loaders]


def merged(loaders):
    """Their states as one, as a checkpoint gives it back; in any order."""
    found = states_of(loaders)
    random.shuffle(found)
    return stored(merge_states(found))


def loaded(division, state, epoch=0, **options):
    """Loaders of all ranks that go on from a merged state."""
    loaders = division.loaders(epoch, **options)
    with quiet():
        for loader in loaders:
            loader.load_state_dict(state)
    return loaders


def together(ranks):
    """The batches of all ranks as those of one: the samples of each step, sorted."""
    steps = itertools.zip_longest(*ranks, fillvalue=[])
    return [sorted(itertools.chain(*step)) for step in steps]


def all_of(ranks):
    """How often each sample is among the batches of all ranks."""
    return Counter(itertools.chain(*itertools.chain(*ranks)))


@st.composite
def changes(draw):
    """Three divisions of one epoch, and positions at which one follows the other."""
    ranks = draw(st.lists(st.integers(1, 5), min_size=3, max_size=3))
    step = math.lcm(*ranks) * draw(st.integers(1, 3))
    first = Division(
        ranks[0],
        length=draw(st.integers(1, 130)),
        step=step,
        shuffle=draw(st.booleans()),
        drop_uneven=draw(st.booleans()),
        drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )
    divisions = [first._replace(ranks=number) for number in ranks]
    positions = []
    for division in divisions[:2]:
        total = len(division.epoch()[0])
        positions.append(draw(st.integers(min([*positions[-1:], total]), total)))
    return divisions, positions, draw(st.integers(0, 3))


@pytest.mark.thorough
@given(changes())
def test_whatever_is_divided(change):
    """Any lengths, numbers of ranks and batches go on as torch's samplers divide them, twice."""
    (first, second, third), (position, later), epoch = change
    loaders, done = first.interrupted(position, epoch)
    state = merged(loaders)
    between = loaded(second, state, epoch)
    more = [took(loader, later - position) for loader in between]

    expected = second.epoch(epoch)
    assert [batches[position:later] for batches in expected] == more
    rest = [whole(loader) for loader in loaded(second, state, epoch)]
    if rest[0] or position < len(first.epoch(epoch)[0]):
        # Otherwise the last step was delivered, to which each number of ranks adds other samples.
        assert all_of(expected) == all_of(done) + all_of(rest)
    full = max(first.length // first.step - position, 0)
    assert together(first.epoch(epoch))[position:][:full] == together(rest)[:full]

    # Where they are is where ranks of an undisturbed run are.
    undisturbed, _ = second.interrupted(later, epoch)
    facts = ("at", "_iterator_finished", "drawn", "low", "checksum", "sampler_epoch", "rank")
    for mine, torchs in zip(states_of(between), states_of(undisturbed), strict=True):
        assert {name: torchs[name] for name in facts} == {name: mine[name] for name in facts}

    state = merged(between)
    last = loaded(third, state, epoch)

    assert [batches[later:] for batches in third.epoch(epoch)] == [whole(each) for each in last]
    for loader in last:
        loader.sampler.set_epoch(epoch + 1)
    assert third.epoch(epoch + 1) == [whole(loader) for loader in last]


WAYS = {
    "workers that live on": {"persistent_workers": True},
    "by the worker": {"seed_by": "worker", "resumable": True},
    "any worker": {"assignment": "dynamic"},
    "out of order": {"in_order": False, "num_workers": 1},
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_workers_go_on(way):
    """So it is with workers, in the rest of the epoch and in the next one."""
    old, new = Division(4), Division(2)
    options = {"num_workers": 2, **WAYS[way]}
    loaders, _ = old.interrupted(2, epoch=1, **options)
    state = merged(loaders)
    close(loaders)
    loaders = loaded(new, state, 1, **options)

    assert [batches[2:] for batches in new.epoch(1)] == [whole(loader) for loader in loaders]
    for loader in loaders:
        loader.sampler.set_epoch(2)
    assert new.epoch(2) == [whole(loader) for loader in loaders]
    close(loaders)


def close(loaders):
    for loader in loaders:
        loader.close()


def test_one_rank_may_go_without_a_distributed_sampler():
    """A loader in order is the one rank of a DistributedSampler that does not shuffle."""
    dataset, several = range(LENGTH), Division(3, shuffle=False)
    alone = DataLoader(dataset, STEP, seed_by="batch")
    done = took(alone, 2)
    rest = [whole(loader) for loader in loaded(several, merged([alone]))]
    assert [batches[2:] for batches in several.epoch()] == rest

    loaders, _ = several.interrupted(2)
    expected = whole(DataLoader(dataset, STEP))
    assert expected[2:] == gone_on(DataLoader(dataset, STEP, seed_by="batch"), merged(loaders))
    again = DataLoader(dataset, STEP, seed_by="batch")
    assert expected == done + gone_on(again, merged([alone]))


def test_a_state_before_the_first_epoch_begins_it():
    """Nothing was drawn, so nothing is lost, and nothing is warned of."""
    state = merged(Division(4).loaders())
    with warnings.catch_warnings(action="error"):
        loaders = Division(2).loaders(epoch=5)
        for loader in loaders:
            loader.load_state_dict(state)

    assert Division(2).epoch(5) == [whole(loader) for loader in loaders]


def test_a_state_of_a_finished_epoch_begins_the_next():
    """As the state of one rank does, even if Accelerate says that it was finished."""
    finished = Division(4).loaders()
    assert Division(4).epoch() == [whole(loader) for loader in finished]
    said = [{**state, "_iterator_finished": True} for state in states_of(Division(4).loaders())]
    for state in (merged(finished), stored(merge_states(said))):
        loaders = loaded(Division(2), state, epoch=1)

        assert Division(2).epoch(1) == [whole(loader) for loader in loaders]


def test_a_merged_state_that_was_not_begun_is_saved_as_it_is():
    """A checkpoint between load and iter() merges copies of what was loaded."""
    loaders, _ = Division(4).interrupted(2)
    state = merged(loaders)
    again = loaded(Division(2), state)

    assert [state, state] == states_of(again)
    assert state == merged(again) == merge_states([state])


def test_a_merged_state_is_small_and_text():
    """It has the keys of any state, and 10 bytes for each rank."""
    loaders, _ = Division(STEP).interrupted(2)
    state = merge_states(states_of(loaders))

    assert list(states.UNSET) == list(state)
    assert state == json.loads(json.dumps(state))
    assert len(pickle.dumps(state)) < 1024 + 10 * STEP


# Random draws


def drawing(index):
    """A sample (4,) float64: the index, and draws."""
    return torch.tensor([index, *drawn()], dtype=torch.float64)


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("seed_by", "workers"), [("batch", 0), ("worker", 1), pytest.param("batch", 2)]
)
def test_draws_begin_anew(seed_by, workers):
    """One warning says so; no draw is repeated, and the samples are those that were left."""
    options = {"dataset": Computed(LENGTH, drawing), "seed_by": seed_by, "num_workers": workers}
    old, new = Division(2), Division(1)
    torch.manual_seed(5)
    loaders = old.loaders(**options)
    iterators = [iter(loader) for loader in loaders]
    done = [sample for each in iterators for _ in range(2) for sample in next(each).tolist()]
    state = merged(loaders)
    done += [sample for each in iterators for batch in each for sample in batch.tolist()]
    close(loaders)
    torch.manual_seed(5)
    (loader,) = new.loaders(**options)
    with pytest.warns(UserWarning, match="begin again: this state is of 2 ranks") as warned:
        loader.load_state_dict(state)
    rest = whole(loader)
    loader.close()

    assert 1 == len(warned)
    assert new.epoch()[0][2:] == [[sample[0] for sample in batch] for batch in rest]
    assert not {sample[1] for sample in done} & {sample[1] for batch in rest for sample in batch}


def test_the_trainings_own_draws_are_its_own():
    """Without workers and with torch's rule for seeds, nothing of ours draws: no warning."""
    options = {"dataset": Computed(LENGTH, drawing), "seed_by": "worker"}
    state = merged(Division(2).interrupted(2, **options)[0])
    (loader,) = Division(1).loaders(**options)
    with warnings.catch_warnings(action="error"):
        loader.load_state_dict(state)


def test_ranks_draw_alike_if_they_are_seeded_alike():
    """As in a run that begins: what differs are the ranks' own generators."""
    loaders, _ = Division(2).interrupted(2)
    state = merged(loaders)
    seeds = []
    for number in (5, 5, 6):
        torch.manual_seed(number)
        loader = loaded(Division(3), state)[0]
        iter(loader)
        seeds.append(loader.state_dict()["base_seed"])

    assert seeds[0] == seeds[1] != seeds[2]


def test_what_is_saved_later_in_the_epoch_goes_on_exactly():
    """A rank that has gone on from a merged state saves a state by which all draws go on."""

    def opened(seed):
        generator = generator_of(seed)
        return Division(1).loaders(dataset=Computed(LENGTH, drawing), generator=generator)[0]

    loaders, _ = Division(2).interrupted(1, dataset=Computed(LENGTH, drawing))
    state = merged(loaders)
    with quiet():
        loader = opened(7)
        loader.load_state_dict(state)
    iterator = iter(loader)
    next(iterator)
    later = stored(loader.state_dict())
    expected = [batch.tolist() for batch in iterator] + whole(loader)
    again = opened(8)
    with warnings.catch_warnings(action="error"):
        again.load_state_dict(later)

    assert expected == whole(again) + whole(again)


# What is refused


def refused(division, state, words, epoch=0, **options):
    """Loading raises, and the loader is as it was."""
    for loader in division.loaders(epoch, **options):
        before = loader.state_dict()
        with pytest.raises(ValueError, match=words):
            loader.load_state_dict(state)

        assert before == loader.state_dict()
        assert len(loader) == len(list(loader))


OTHERS = {
    "a step that cannot be divided": (
        Division(5, step=60),
        "4 ranks with batch_size 3, 12 samples .* 5 ranks with batch_size 12, 60 .*12 cannot be "
        "divided by 5",
    ),
    "a larger step": (
        Division(2, step=24),
        "12 samples .* 2 ranks with batch_size 12, 24 samples: pass batch_size=6",
    ),
    "another length": (Division(2, length=51), "length of the dataset 50, and here it is 51"),
    "another seed": (Division(2, seed=4), r"4 ranks, .* seed 3\)', .*2 ranks, .* seed 4\)'"),
    "another order": (Division(2, shuffle=False), r"seed 3\)', .* in order\)'"),
    "another rule for what is uneven": (
        Division(2, drop_uneven=True),
        r"seed 3\)', .* seed 3, drop_last\)'",
    ),
    "another rule for the last batch": (Division(2, drop_last=True), "drop_last 0, .* it is 1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_loaders_refuse_it(name):
    """The error names both sides, with their numbers, and nothing is loaded."""
    loaders, _ = Division(4).interrupted(2)
    refused(OTHERS[name][0], merged(loaders), OTHERS[name][1])


def test_another_rule_for_seeds_is_refused():
    """seed_by has to be the same, as for the state of one rank."""
    loaders, _ = Division(4).interrupted(2)
    refused(Division(2), merged(loaders), "'batch', and here it is 'worker'", seed_by="worker")


class Own(DistributedSampler):
    """A sampler of the user's, whose order is known to nobody else."""


class Disguised(DistributedSampler):
    """Another one, of torch's name."""


Disguised.__name__ = "DistributedSampler"

SAMPLERS = {
    "random": (lambda: RandomSampler(range(LENGTH)), "'BatchSampler of RandomSampler"),
    "own": (lambda: Own(range(LENGTH), 2, 0), "'BatchSampler of Own"),
    "disguised": (lambda: Disguised(range(LENGTH), 2, 0), "'BatchSampler of Dist.* 2 ranks"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_other_samplers_refuse_it(name):
    """Only torch's own division is known."""
    make, words = SAMPLERS[name]
    loaders, _ = Division(4).interrupted(2)
    state = merged(loaders)
    loader = DataLoader(range(LENGTH), STEP // 2, sampler=make(), seed_by="batch")
    with pytest.raises(
        ValueError, match=rf"from 4 ranks .* here it is {words}.*only batches of torch's"
    ):
        loader.load_state_dict(state)


UNMERGEABLE = {
    "random": (1, {"sampler": RandomSampler(range(LENGTH))}, SAMPLERS["random"][1]),
    "own": (1, {"sampler": Own(range(LENGTH), 2, 0)}, SAMPLERS["own"][1]),
    "all samples on each rank": (2, {}, r"SequentialSampler', on each of 2 ranks"),
    "iterable": (1, {"dataset": Stream()}, "of an iterable dataset"),
}


@pytest.mark.parametrize("name", UNMERGEABLE)
def test_states_of_other_orders_are_not_merged(name):
    """The error names the sampler, or says that the dataset divides its samples itself."""
    ranks, given, words = UNMERGEABLE[name]
    loader = DataLoader(**{"dataset": range(LENGTH), "batch_size": STEP // 2, **given})
    order = samplers.divided_order(loader._index_sampler, ranks)
    state = {**loader.state_dict(), "order": order}
    with pytest.raises(ValueError, match=words):
        merge_states([{**state, "rank": rank, "ranks": ranks} for rank in range(ranks)])


def test_one_state_of_each_rank_is_needed():
    """The error names the ranks that are missing or there twice."""
    found = states_of(Division(4).interrupted(2)[0])
    for ranks, wrong in (
        ([found[0], found[3]], "1, 2"),
        ([*found, found[1]], "1"),
        ([*found[:3], found[0]], "0, 3"),
    ):
        words = f"{len(ranks)} states of .* 4 ranks .* rank {wrong} is missing or"
        with pytest.raises(ValueError, match=words):
            merge_states(ranks)
    with pytest.raises(ValueError, match=r"4 states of runs with \[2, 4\] ranks"):
        merge_states([*found[:3], Division(2).loaders()[1].state_dict()])


DIFFERENCES = {
    "a step apart": ({"drawn": 1, "low": 1}, "delivered: 2 on rank 0 and 1 on rank 1"),
    "another moment": ({"at": "end"}, "moment: 'epoch' on rank 0 and 'end' on rank 1"),
    "another epoch": ({"sampler_epoch": 4}, "epoch of its sampler: 0 on rank 0 and 4 on rank 1"),
    "another life": ({"epoch": 6}, "workers had ended: 0 on rank 0 and 6 on rank 1"),
    "another seed": (
        {"sampler": "BatchSampler of DistributedSampler(4 ranks, shuffled by seed 4)"},
        "seed 3.* on rank 0 and .*seed 4.* on rank 1",
    ),
    "another length": ({"length": 51}, "the dataset: 50 on rank 0 and 51 on rank 1"),
    "another batch size": ({"batch_size": 4}, "batch_size: 3 on rank 0 and 4 on rank 1"),
    "another rule": ({"drop_last": 1}, "drop_last: 0 on rank 0 and 1 on rank 1"),
    "other draws": ({"seed_by": "worker"}, "seed_by: 'batch' on rank 0 and 'worker' on rank 1"),
    "another recipe": ({"recipe": 9}, "recipe for seeds: 1 on rank 0 and 9 on rank 1"),
    "a later version": ({"shmloader": 99}, "version 99.*versions up to 2"),
    "damage": ({"drawn": "2"}, "damaged: drawn is '2'"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_ranks_that_differ_are_not_merged(name):
    """The error names both, with what each has."""
    change, words = DIFFERENCES[name]
    found = states_of(Division(4).interrupted(2)[0])
    found[1] |= change
    with pytest.raises(ValueError, match=words):
        merge_states(found)


def test_what_is_not_in_order_is_not_merged():
    """Samples that no rank was given cannot be divided into batches anew."""
    found = states_of(Division(2, step=2).interrupted(20)[0])
    for state in found:
        state |= {"low": 0, "missing": states.pack_numbers([*range(8), 9], 0, 20)}
    words = "rank 0 was not given batch 0, 1, 2, 3, 4, 5, 6, 7 and 1 more of its first 20"
    with pytest.raises(ValueError, match=words):
        merge_states(found)


def test_an_earlier_states_missing_batches_come():
    """0.1.0 merged what was not in order if all ranks lacked the same batches."""
    state = merged(Division(4).interrupted(2)[0])
    state |= {"drawn": 3, "missing": states.pack_numbers([2], 2, 3)}

    rest = [whole(loader) for loader in loaded(Division(2), state)]
    assert [batches[2:] for batches in Division(2).epoch()] == rest


def test_states_of_different_moments_are_not_merged():
    """Rank 0 has not begun since it loaded a merged state, and rank 1 has."""
    loaders = loaded(Division(2), merged(Division(4).interrupted(2)[0]))
    next(iter(loaders[1]))
    with pytest.raises(ValueError, match="1 of these 2 states were merged before"):
        merge_states(states_of(loaders))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([], ValueError, "0 states of runs"),
        ({"shmloader": 1}, TypeError, "a list .* but got one dict"),
        ([[]], TypeError, "got list"),
        ([{"_snapshot": {}}], ValueError, r"keys _snapshot.*torchdata"),
    ],
)
def test_what_is_no_list_of_states_is_refused(given, error, words):
    """The error says what was expected."""
    with pytest.raises(error, match=words):
        merge_states(given)


@pytest.mark.parametrize("checksums", [[1], [1, 2, 3, "4"], [1.5] * 4, "abcd"])
def test_a_damaged_merged_state_is_refused(checksums):
    """It has one checksum of each rank."""
    state = {**merged(Division(4).interrupted(2)[0]), "checksums": checksums}
    refused(Division(2), state, "damaged")


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_first_ranks_checksum_is_looked_at(shuffle):
    """What it was given has to be drawn again: another order is another one for any rank."""
    old, new = Division(4, shuffle=shuffle), Division(2, shuffle=shuffle)
    state = merged(old.interrupted(2)[0])
    state["checksums"][0] += 1
    (loader, _) = loaded(new, state)
    with pytest.raises(ValueError, match="the 2 batches that rank 0 of 4 was given"):
        iter(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_epoch_is_refused_at_iter(workers):
    """The error names the epoch to set; a sampler that was told none goes on in the state's."""
    state = merged(Division(4).interrupted(2, epoch=3)[0])
    (loader,) = loaded(Division(1), state, num_workers=workers)
    loader.sampler.set_epoch(2)
    with pytest.raises(ValueError, match=r"was 3 and is 2: call set_epoch\(3\) first"):
        iter(loader)
    loader.sampler.set_epoch(0)  # as one that was told none: the state knows it

    assert Division(1).epoch(3)[0][2:] == whole(loader)
    loader.close()


def test_the_state_of_one_rank_alone_is_refused():
    """By another number of ranks; the error says what to do."""
    state = Division(4).interrupted(2)[0][0].state_dict()
    refused(Division(2), state, r"one of 4 ranks, and this run has 2: merge .*merge_states\(\)")


def test_a_dataset_without_an_end_can_be_merged():
    """In order nothing is drawn, so no list of its samples is made."""

    def opened():
        endless = Computed(10**15, int)
        return DataLoader(endless, 2, sampler=SequentialSampler(endless), seed_by="batch")

    loader = opened()
    iterator = iter(loader)
    next(iterator)
    again = opened()
    with quiet():
        again.load_state_dict(merge_states([loader.state_dict()]))

    assert next(iterator).tolist() == next(iter(again)).tolist() == [2, 3]
