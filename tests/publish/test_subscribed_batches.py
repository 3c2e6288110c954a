"""A subscriber's batches are its own, as a trainer's are."""

import os
import pickle
import resource

import pytest
import torch
from torch.utils.data import TensorDataset

import shmloader
from shmloader.device import way
from tests.device.standin import StandIn
from tests.publish.actors import NAME, as_values, epochs_of, loader_of, publishes, quietly, reads

# On a machine that others use, anybody may be late.
pytestmark = pytest.mark.filterwarnings("ignore:.*all .*wait for the ")

FEW_SLOTS = {"slots": 4}


def test_batches_are_kept_for_ever(play):
    """Whatever is kept stays as it was, in slots or copied out of them."""

    def keeps(say, hear):
        with shmloader.subscribe(NAME) as batches:
            kept = [*batches, *batches]
            say(batches.stats().spilled > 0)
        return [as_values(batch) for batch in kept]

    publisher = play(publishes, subscribers=2, options=FEW_SLOTS)
    keeper, reader = play(quietly(keeps)), play(reads, epochs=2)

    own = epochs_of(loader_of(), 2)
    assert keeper.hear() is True
    assert [*own[0], *own[1]] == keeper.hear()
    assert own == reader.hear()
    assert publisher.hear() == "over"


def test_changes_in_place_are_seen_by_nobody_else(play):
    """A batch is changed while the others read it."""

    def changes(say, hear):
        with shmloader.subscribe(NAME) as batches:
            for _ in range(2):
                for batch in batches:
                    batch[0].fill_(-1)
        return "changed"

    publisher = play(publishes, subscribers=3, options=FEW_SLOTS)
    changing, *readers = play(changes), play(reads, epochs=2), play(reads, epochs=2)

    own = epochs_of(loader_of(), 2)
    assert [own] * 2 == [reader.hear() for reader in readers]
    assert ["changed", "over"] == [changing.hear(), publisher.hear()]


def test_a_forked_child_reads_what_it_inherited(play):
    """Its batch stays while the parent goes on, and the subscription is the parent's."""

    def forks(say, hear):
        with shmloader.subscribe(NAME) as batches:
            iterator = iter(batches)
            batch = next(iterator)
            first = as_values(batch)
            ours, theirs = os.pipe()
            child = os.fork()
            if child == 0:
                os.read(ours, 1)
                is_whole = as_values(batch) == first
                try:
                    next(iterator)
                except RuntimeError as error:
                    is_told = "was forked from the subscriber" in str(error)
                os._exit(0 if is_whole and is_told else 1)
            del batch
            rest = [as_values(each) for each in iterator]
            os.write(theirs, b"x")
            _, status = os.waitpid(child, 0)
            return [first, *rest], status

    publisher = play(publishes, subscribers=1, options=FEW_SLOTS)
    reader = play(forks)

    assert (epochs_of(loader_of(), 1)[0], 0) == reader.hear()
    assert publisher.hear() == "over"


def test_a_forked_child_of_the_publisher_ends_nothing(play):
    """Whatever it does at its exit, the publication is its parent's."""
    reader = play(reads, epochs=2)
    with shmloader.publish(loader_of(), NAME, subscribers=1, consume=True) as batches:
        found = epochs_of(batches, 1)
        child = os.fork()
        if child == 0:
            batches.close()
            os._exit(0)
        assert (child, 0) == os.waitpid(child, 0)
        found += epochs_of(batches, 1)

    assert [epochs_of(loader_of(), 2)] * 2 == [found, reader.hear()]


def test_stats_and_report_are_of_this_process(play):
    """What came here is counted here, and said in a line."""

    def counts(say, hear):
        with shmloader.subscribe(NAME) as batches:
            for batch in batches:
                pickle.dumps(torch.clone(batch[0]))
            stats = batches.stats()
            held = len(batches.held())
            del batch
            return len(batches), stats.batches, stats.epochs[-1].batches, held, batches.report()

    publisher = play(publishes)
    reader = play(counts)

    *numbers, report = reader.hear()
    assert [12, 12, 12, 1] == numbers
    assert "on copies of 12 batches" in report
    assert publisher.hear() == "over"


def test_a_device_s_transform_is_applied(play):
    """`device=` is what it is for a loader."""

    def transforms(say, hear):
        device = shmloader.Device("cpu", transform=lambda batch: (batch[0] * 0, *batch[1:]))
        with shmloader.subscribe(NAME, device=device) as batches:
            return [batch[0].abs().sum().item() for batch in batches]

    publisher = play(publishes)
    reader = play(transforms)

    assert [0.0] * 12 == reader.hear()
    assert publisher.hear() == "over"


def test_batches_arrive_on_a_device(play):
    """They are copied on from this process's own slots, ahead of the step."""

    def copies(say, hear):
        torch.set_num_threads(1)  # torch's threads are not in a forked child
        backend = StandIn()
        way.backend_for = lambda device: backend
        found = []
        with shmloader.subscribe(NAME, device="cuda") as batches:
            for _ in range(2):
                found.append([])
                for batch in batches:
                    backend.finish()
                    found[-1].append(as_values(batch))
            copied = sum(batches.stats().copied.values())
        return found, copied, backend.faults

    publisher = play(publishes)
    reader = play(copies)

    assert (epochs_of(loader_of(), 2), 24, []) == reader.hear()
    assert publisher.hear() == "over"


@pytest.mark.thorough
def test_no_page_fault_a_batch(play):
    """Batches are copied into memory that is warm: later epochs touch no new page."""

    def counts(say, hear):
        torch.set_num_threads(1)
        found = []
        with shmloader.subscribe(NAME) as batches:
            for _ in range(4):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                last = [int(values[0, -1]) for (values,) in batches]
                found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return last, found

    large = TensorDataset(torch.arange(40.0).repeat_interleave(300_000).reshape(40, 300_000))
    publisher = play(
        publishes,
        dataset=large,
        options={"batch_size": 1, "shuffle": False, "persistent_workers": True},
    )
    last, faults = play(counts).hear()

    assert [*range(40)] == last
    # In any epoch a busy kernel may take pages back; one a batch would be 40 in each.
    assert faults[0] > 40 > min(faults[1:]), faults
    assert publisher.hear() == "over"
