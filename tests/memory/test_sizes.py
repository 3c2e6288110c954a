"""
Invariant 3 on real loaders: batches of any size come through, and memory stays within its bounds.
"""

import contextlib
import signal
import time

import pytest
import torch

import shmloader
from shmloader import BatchTooLarge, DataLoader
from tests.helpers.datasets import Computed

PAGE = 4096


def bytes_of(index: int, length: int) -> torch.Tensor:
    """Make (length,) uint8 that no other index has."""
    return torch.arange(length, dtype=torch.int64).mul_(7).add_(31 * index).to(torch.uint8)


def open_loader(lengths, **options):
    settings = {"batch_size": None, "num_workers": 2}
    dataset = Computed(len(lengths), lambda index: bytes_of(index, lengths[index]))
    return DataLoader(dataset, **{**settings, **options})


LENGTHS = {
    "small first": [10] + 20 * [1 << 20],
    "large first": [1 << 20] + 20 * [10],
    "thousandfold": [1 << (10 + 10 * (i * 7 % 3) // 2) for i in range(30)],
    "one huge": 10 * [100] + [40 << 20] + 10 * [100],
    "drift": [1000 * (i + 1) ** 2 for i in range(30)],
    "page edges": [PAGE + i for i in range(-3, 4)] * 3,
    "empty": [0, 0, 5, 0],
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_sizes_come_through(lengths, in_order):
    """
    Batches of any sizes are delivered bit for bit, and shared memory in use stays within 1.25 x
    slots x largest batch, in whole pages.
    """
    slots = 2 * 2 + 6
    # The layout is part of a batch; a page is the smallest piece.
    most = slots * (1.25 * (max(lengths) + 256) + PAGE)
    with open_loader(lengths, in_order=in_order) as loader:
        left = [bytes_of(index, length) for index, length in enumerate(lengths)]
        for made in loader:
            found = next(i for i, one in enumerate(left) if torch.equal(one, made))
            del left[found]
            assert found == 0 or not in_order
            assert loader.stats().resident_bytes <= most
        assert left == []


@pytest.mark.core(first=1)
@pytest.mark.parametrize("slot_bytes", [None, 1, 1 << 20])
def test_slot_bytes_changes_no_content(slot_bytes):
    """A guess of any size for the first batches is only a guess."""
    lengths = [10, 300_000, 4_000_000, 10]
    with open_loader(lengths, slot_bytes=slot_bytes) as loader:
        for index, made in enumerate(loader):
            assert torch.equal(bytes_of(index, lengths[index]), made)
        assert index == 3


@pytest.mark.core(first=1)
@pytest.mark.parametrize("excess", [-(1 << 12), -1, 0, 1, 1 << 20])
@pytest.mark.parametrize("collated", [False, True])
def test_a_batch_beyond_the_budget_says_so(collated, excess):
    """A batch larger than ring_bytes is an error with the numbers, and iteration goes on."""
    ring_bytes = 1 << 20
    lengths = [100, ring_bytes + excess, 100, 100]
    with open_loader(
        lengths, ring_bytes=ring_bytes, batch_size=1 if collated else None, num_workers=1
    ) as loader:
        batches = iter(loader)
        assert torch.equal(bytes_of(0, 100), next(batches).view(-1))
        if excess < -PAGE // 2:
            assert torch.equal(bytes_of(1, lengths[1]), next(batches).view(-1))
        else:
            with pytest.raises(BatchTooLarge, match=r"batch of 1\.1 MB|batch of 2\.1 MB") as caught:
                next(batches)
            assert "MB does not fit ring_bytes of 1.0 MB: set ring_bytes=" in str(caught.value)
        assert torch.equal(bytes_of(2, 100), next(batches).view(-1))
        assert torch.equal(bytes_of(3, 100), next(batches).view(-1))


def test_trying_again_is_refused_again():
    """A dataset that catches the refusal, however often, gets its next batches through."""

    def make(index):
        refused = 0
        for _ in range(200):
            try:
                shmloader.empty(1 << 22, torch.uint8)
            except BatchTooLarge:
                refused += 1
        return refused

    loader = DataLoader(
        Computed(6, make), batch_size=None, num_workers=1, ring_bytes=1 << 20, slots=2
    )
    with loader:
        batches = iter(loader)
        time.sleep(0.3)  # the trainer looks only when the worker has asked many times
        assert [200] * 6 == list(batches)


@pytest.mark.thorough
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("kept", [0, 3, 40])
@pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")
def test_later_batches_cannot_starve_the_first(kept, in_order):
    """The batch that must come first gets its bytes although later ones have eaten the budget."""
    length = 300_000

    def make(index):
        if index % 8 == 0:
            time.sleep(0.03)  # meanwhile the other worker fills the ring
        return bytes_of(index, length)

    loader = DataLoader(
        Computed(40, make),
        batch_size=None,
        num_workers=2,
        prefetch_factor=4,
        ring_bytes=4 * length,
        slots=16,
        in_order=in_order,
    )
    held = []
    left = set(range(40))
    with loader:
        for made in loader:
            index = next(i for i in sorted(left) if torch.equal(bytes_of(i, length), made))
            left.remove(index)
            if len(held) < kept:
                held.append((index, made))
    assert not left
    assert all(torch.equal(bytes_of(index, length), made) for index, made in held)


class GaveUp(Exception):
    """The alarm of a collate function that waits no longer."""


def give_up(*_):
    raise GaveUp


def collate_impatiently(indices):
    """Make a batch too large to be granted at once; of the second, ask again and again for it."""
    if indices != [1]:
        return shmloader.empty(3 << 20 if indices[0] else 1 << 10, torch.uint8).fill_(indices[0])
    signal.signal(signal.SIGALRM, give_up)
    for attempt in range(40):
        with contextlib.suppress(GaveUp, BatchTooLarge):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.005)
                shmloader.empty((3 << 20) + attempt, torch.uint8)
                break
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    return torch.tensor(indices)


@pytest.mark.thorough
def test_wants_that_are_given_up_lose_no_answer():
    """A worker that asks for room more often than its ring has cells still delivers its batch."""
    loader = DataLoader(
        Computed(5, int),
        num_workers=1,
        slots=2,
        ring_bytes=4 << 20,
        collate_fn=collate_impatiently,
        multiprocessing_context="fork",
        timeout=60,
    )
    with loader:
        batches = iter(loader)
        first = next(batches)
        time.sleep(1.0)  # the trainer is busy meanwhile, and grants nothing
        rest = list(batches)
    assert [0, 1, 2, 3, 4] == [int(made.reshape(-1)[0]) for made in [first, *rest]]
