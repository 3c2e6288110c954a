"""Every subscriber gets the batches that a loader of its own would have given, in its order."""

import itertools

import pytest
import torch

import shmloader
from tests.publish.actors import (
    LONGEST_WAIT_S,
    NAME,
    Fails,
    Rows,
    as_values,
    epochs_of,
    loader_of,
    publishes,
    quietly,
    reads,
)

kept_by_worker = []


def keeping(samples):
    """Collate, and keep an alias, so that the batch is copied out when it is delivered."""
    batch = torch.utils.data.default_collate(samples)
    kept_by_worker.append(batch)
    return batch


CASES = {
    # subscribers, options of the loader, rows and their length
    "one": (1, {}),
    "two": (2, {}),
    "four": (4, {}),
    "persistent": (2, {"persistent_workers": True}),
    "two slots": (2, {"slots": 2}),
    "one slot": (2, {"num_workers": 1, "prefetch_factor": 1, "slots": 1}),
    "dynamic": (2, {"pin_memory": False, "seed_by": "batch", "assignment": "dynamic"}),
    "drop_last": (2, {"batch_size": 5, "drop_last": True}),
    "kept by workers, and so copied out": (2, {"collate_fn": keeping}),
    "spilled before it is told of": (
        1, {"ring_bytes": 1 << 20, "num_workers": 3, "prefetch_factor": 4}, 64, 20_000
    ),
}  # fmt: skip


@pytest.mark.core(first=1)
@pytest.mark.parametrize("case", CASES)
def test_each_gets_what_a_loader_of_its_own_would_give(play, case):
    """All bits, for as many epochs as are read, and the publisher ends with the last of them."""
    subscribers, options, *rows = CASES[case]
    given = {"dataset": Rows(*rows), "options": options}
    publisher = play(quietly(publishes), subscribers=subscribers, **given)
    epochs = 1 if rows else 3
    readers = [play(reads, epochs=epochs) for _ in range(subscribers)]

    plain = {name: value for name, value in options.items() if name not in ("slots", "collate_fn")}
    own = epochs_of(loader_of(Rows(*rows), **plain), epochs)
    assert [own] * subscribers == [reader.hear() for reader in readers]
    assert publisher.hear() == "over"


@pytest.mark.thorough
def test_a_rank_reads_for_its_peers(play):
    """With consume=True the publisher has the batches too, and no one else changes them."""
    readers = [play(reads, epochs=2) for _ in range(2)]
    with shmloader.publish(loader_of(), NAME, subscribers=2, consume=True) as batches:
        assert 12 == len(batches)
        found = []
        for _ in range(2):
            kept = []
            for batch in batches:
                kept.append(as_values(batch))
                batch[0].zero_()
            found.append(kept)

    own = epochs_of(loader_of(), 2)
    assert [own] * 3 == [found, *(reader.hear() for reader in readers)]


@pytest.mark.thorough
@pytest.mark.parametrize("read", [12, 1], ids=["whole", "broken off"])
@pytest.mark.parametrize("bits", [24, 32])
def test_epochs_are_counted_beyond_any_word(play, bits, read):
    """If a cell's bits, or a word's, do not hold the number, epochs begin, end, and are skipped."""
    first = (1 << bits) - 3
    options = {"persistent_workers": True, "slots": 4}

    def reads_from_there(say, hear):
        with shmloader.subscribe(NAME, timeout=LONGEST_WAIT_S) as batches:
            batches._join().pool.history._count = first
            found = [
                [as_values(batch) for batch in itertools.islice(batches, read)] for _ in range(5)
            ]
            return found, [epoch.number for epoch in batches.stats().epochs]

    reader = play(reads_from_there)
    own = epochs_of(loader_of(**options), 5)
    with shmloader.publish(
        loader_of(**options), NAME, subscribers=1, consume=True, timeout=LONGEST_WAIT_S
    ) as batches:
        batches._publisher._epoch = batches._loader._service.pool.history._count = first
        assert own == epochs_of(batches, 5)
        numbers = [epoch.number for epoch in batches._loader.stats().epochs]

    assert ([epoch[:read] for epoch in own], numbers) == reader.hear()
    assert [*range(first + 1, first + 6)] == numbers


@pytest.mark.thorough
def test_epochs_end_the_publisher(play):
    """After the last epoch the next iter() of a subscriber says so."""

    def reads_on(say, hear):
        with shmloader.subscribe(NAME) as batches:
            say(epochs_of(batches, 2))
            return epochs_of(batches, 1)

    publisher = play(publishes, epochs=2)
    reader = play(reads_on)

    assert epochs_of(loader_of(), 2) == reader.hear()
    assert publisher.hear() == "over"
    assert ("RuntimeError", f"the publisher of {NAME!r} has ended, and runs no more epochs") == (
        reader.hear()
    )


@pytest.mark.thorough
def test_an_error_stands_in_its_batch_s_place(play):
    """A row's error is raised where the loader would raise it, and the next batches come."""

    def reads_over_it(say, hear):
        with shmloader.subscribe(NAME) as batches:
            return over_errors(iter(batches))

    def over_errors(iterator):
        found = []
        while True:
            try:
                found.append(as_values(next(iterator)))
            except StopIteration:
                return found
            except ValueError as error:
                found.append(str(error))

    publisher = play(publishes, subscribers=2, dataset=Fails())
    readers = [play(reads_over_it) for _ in range(2)]

    own = over_errors(iter(loader_of(Fails())))
    assert 1 == sum(isinstance(each, str) for each in own)
    assert [own] * 2 == [reader.hear() for reader in readers]
    assert publisher.hear() == "over"


def test_an_error_of_the_sampler_ends_all(play):
    """What is no batch's error is raised by the publisher and by each subscriber."""

    class Breaks(torch.utils.data.SequentialSampler):
        def __iter__(self):
            yield from range(20)
            raise KeyError("no more")

    options = {"sampler": Breaks(range(48)), "shuffle": False}
    publisher = play(publishes, options=options)
    reader = play(reads)

    assert ("KeyError", "'no more'") == reader.hear() == publisher.hear()


@pytest.mark.thorough
def test_a_sampler_is_told_each_epoch(play):
    """Epochs are the publisher's: a distributed sampler draws anew in each."""

    def sampled():
        return torch.utils.data.DistributedSampler(Rows(), 2, 0, seed=3)

    publisher = play(publishes, options={"sampler": sampled(), "shuffle": None})
    reader = play(reads, epochs=2)
    sampler = sampled()
    own = []
    loader = loader_of(sampler=sampler, shuffle=None)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        own += epochs_of(loader, 1)

    assert own == reader.hear()
    assert own[0] != own[1]
    assert publisher.hear() == "over"
