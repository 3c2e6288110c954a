"""How many pages a worker may add at once, with other workers that do the same."""

import os
import re
import time

import pytest
import torch

from shmloader import DataLoader, OutOfSharedMemory
from shmloader.core import Room
from shmloader.memory import limits
from shmloader.memory.segment import Shape
from shmloader.transport.budget import Budget
from tests.helpers.datasets import Computed
from tests.helpers.segments import segment_files
from tests.simulation.squares import Squares

MEGABYTE = 1 << 20


def room_of(workers):
    shape = Shape(workers, 2 * workers, 1 << 40, 1 << 40)
    return Room(shape, limits.available)


def test_what_a_worker_wants_is_settled_as_it_is_heard():
    """Not at the trainer's next look: it may park until then, and so does the worker."""
    squares = Squares(workers=1)
    try:
        squares.send("large", (0, 1 << 20))
        ledger, deadline = squares.transport.ledger, time.monotonic() + 60
        while not ledger.unread and time.monotonic() < deadline:
            time.sleep(0.001)
        heard = squares.transport.receive()
        wanted = ledger.wants()
        answer, _ = squares.take()
    finally:
        squares.close()

    assert heard is None
    assert wanted == []
    assert answer.key == "large"


@pytest.fixture
def machine(monkeypatch):
    """A machine whose memory is a number in a list."""
    left = [0]
    monkeypatch.setattr(limits, "available", lambda: limits.Available(left[0], "in this test"))
    return left


def test_one_worker_may_have_everything(machine):
    """A worker alone fills what is left to the last byte, and no byte more."""
    machine[0] = 5 * MEGABYTE

    assert 5 * MEGABYTE == room_of(1).piece(5 * MEGABYTE, 5 * MEGABYTE)
    assert 0 == room_of(1).piece(5 * MEGABYTE + 1, 5 * MEGABYTE + 1)


def test_without_ledger_nothing_is_refused(monkeypatch):
    """On a system that does not say how much is left, pages come in pieces all the same."""
    monkeypatch.setattr(limits, "available", lambda: None)

    assert 32 * MEGABYTE == room_of(8).piece(1 << 40, 1 << 40)
    assert 4096 == room_of(8).piece(4096, 4096)


def test_what_is_needed_comes_before_what_is_wished(machine):
    """Pages that a batch will probably need are not added if room is scarce."""
    machine[0] = 5 * MEGABYTE

    assert 8192 == room_of(1).piece(8192, 6 * MEGABYTE)
    assert 0 == room_of(1).piece(0, 6 * MEGABYTE)
    assert 4 * MEGABYTE == room_of(1).piece(0, 4 * MEGABYTE)


@pytest.mark.parametrize("workers", [2, 16, 64, 1000])
def test_other_workers_cost_little_room(machine, workers):
    """For the sake of others a batch leaves 32 MiB in all, and 8 MiB for each of them."""
    machine[0] = (38 + 32 + 8 * (workers - 1)) * MEGABYTE

    assert room_of(workers).piece(38 * MEGABYTE, 38 * MEGABYTE) > 0


@pytest.mark.parametrize("workers", [2, 3, 16, 64])
@pytest.mark.parametrize("available", [MEGABYTE, 40 * MEGABYTE, 500 * MEGABYTE, 8000 * MEGABYTE])
@pytest.mark.parametrize("batch", [100_000, 38 * MEGABYTE, 700 * MEGABYTE])
def test_racing_workers_stay_below_the_limit(machine, workers, available, batch):
    """Workers that all look before any of them adds, again and again, never add too much."""
    room = room_of(workers)
    machine[0] = available
    missing = [batch] * workers
    while True:
        pieces = [room.piece(each, each) for each in missing]
        if not any(pieces):
            break
        machine[0] -= sum(pieces)
        missing = [each - piece for each, piece in zip(missing, pieces, strict=True)]
        assert machine[0] >= 0
    assert not any(missing) or machine[0] < max(missing) + (32 + 8 * workers) * MEGABYTE


def test_a_refusal_says_the_numbers(machine):
    """The batch's own size, what it lacks, what is left, to which process, and what bounds it."""
    machine[0] = 21_000_000
    room = room_of(2)

    assert 0 == room.piece(30_100_000, 30_100_000)
    text = str(room.refusal(38_500_000, 30_100_000))

    assert text.startswith(
        "a batch of 38.5 MB lacks 30.1 MB of shared memory, but 21.0 MB are left to process "
        f"{os.getpid()} in this test, 25.2 MB of them for the other workers: lower batch_size"
    )


# A machine in which the pages of segments are all that counts


def sizes(*megabytes):
    """A loader's options: one batch for each number, of so many MB."""
    return Computed(
        len(megabytes),
        lambda index: torch.full((megabytes[index] << 20,), index, dtype=torch.uint8),
    )


def small_machine(monkeypatch, megabytes):
    monkeypatch.setenv("SHMLOADER_BACKING", "memfd")
    total = megabytes << 20
    monkeypatch.setattr(
        limits,
        "available",
        lambda: limits.Available(total - sum(segment_files().values()), "in this test"),
    )


def fork(dataset, **options):
    options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"} | options
    return DataLoader(dataset, ring_bytes=1 << 30, **options)


def test_free_slots_give_way_in_a_shortage(monkeypatch):
    """Before a batch is refused for want of memory, the pages of free slots are given back."""
    small_machine(monkeypatch, 24)
    loader = fork(sizes(4, 4, 4, 4, 16, 1), slots=4, prefetch_factor=1)
    seen = [(len(batch) >> 20, int(batch[-1])) for batch in loader]
    loader.close()

    assert [(4, 0), (4, 1), (4, 2), (4, 3), (16, 4), (1, 5)] == seen


def test_a_larger_grant_takes_no_pages_from_others(monkeypatch):
    """If memory is left, a worker that asks for more than its slot's part gets it, and no more."""
    made = []
    monkeypatch.setattr(Budget, "make_room", made.append)
    options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"}
    loader = DataLoader(sizes(*[3] * 6), **options, slots=4, prefetch_factor=1, ring_bytes=8 << 20)
    seen = [int(batch[-1]) for batch in loader]
    loader.close()

    assert [0, 1, 2, 3, 4, 5] == seen
    assert [] == made


@pytest.mark.thorough
def test_a_batch_without_room_is_one_error(monkeypatch):
    """The batch that does not fit is refused, with its own size; those around it arrive."""
    small_machine(monkeypatch, 16)
    loader = fork(sizes(1, 24, 2), slots=2, prefetch_factor=1)
    batches = iter(loader)

    assert 1 << 20 == len(next(batches))
    with pytest.raises(OutOfSharedMemory, match=r"a batch of 25\.2 MB lacks 25\.\d MB") as seen:
        next(batches)
    assert re.search(r"1[0-6]\.\d MB are left to process \d+ in this test", str(seen.value))
    assert 2 << 20 == len(next(batches))
    del batches
    loader.close()
    seen.value.__traceback__ = None


def test_a_short_shortage_is_waited_out(monkeypatch, tmp_path):
    """A worker that finds no room looks again before it refuses."""
    looks = tmp_path / "looks"
    looks.write_text("")

    def come_back():
        with open(looks, "a") as file:
            file.write("x")
        return limits.Available(0 if looks.stat().st_size < 5 else 1 << 30, "in this test")

    monkeypatch.setattr(limits, "available", come_back)
    loader = fork(sizes(1))

    assert [1 << 20] == [len(batch) for batch in loader]
    assert looks.stat().st_size >= 5
    loader.close()


def test_workers_without_room_can_be_ended(monkeypatch):
    """A worker that waits for room leaves at once when its epoch is given up."""
    monkeypatch.setattr(limits, "available", lambda: limits.Available(0, "in this test"))
    loader = fork(sizes(1, 1, 1), num_workers=2)
    workers = iter(loader)._workers
    loader.close()

    assert [0, 0] == [worker.exitcode for worker in workers]
