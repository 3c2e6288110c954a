"""Pages come back: when no batch needs them, between epochs, and when others need the room."""

import os
import sys
import threading
import time

import pytest
import torch

from shmloader import DataLoader
from shmloader.memory import limits
from shmloader.memory.account import account
from shmloader.memory.segment import Shape
from shmloader.memory.segment_pool import SegmentPool
from tests.helpers.datasets import Computed
from tests.helpers.segments import segment_files
from tests.helpers.threads import on_a_thread

MB = 1_000_000
LARGE = 40 * MB  # alone more than is left alone
MANY_PAGES = 32 << 20  # less than this is never given back while an epoch runs
LOOKS_EVERY_S = 0.3  # longer than the trainer waits from one look at memory to the next


class Sized:
    """A sample of so many bytes for each index."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __call__(self, index):
        return torch.full((self.sizes[index],), index % 100, dtype=torch.uint8)


def open_loader(sizes, **options):
    settings = {"batch_size": None, "num_workers": 1}
    return DataLoader(Computed(len(sizes), Sized(sizes)), **{**settings, **options})


def resident(loader):
    return loader.stats().resident_bytes


def file_bytes():
    """Bytes that the segments of this process take, whatever their loaders know of them."""
    return sum(segment_files().values())


def run(loader):
    """Iterate once, holding nothing. Returns the most bytes that were resident, and the sum."""
    most = total = 0
    for made in loader:
        total += int(made[0])
        del made
        most = max(most, resident(loader))
    return most, total


@pytest.mark.thorough
def test_one_large_batch_is_forgotten():
    """A hundred small batches later, its pages are gone, although the epoch goes on."""
    sizes = [1000] * 5 + [LARGE, LARGE] + [1000] * 100
    with open_loader(sizes) as loader:
        seen = [resident(loader) for _ in loader]

    assert max(seen) >= LARGE
    assert seen[-1] <= MANY_PAGES


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_keep_pages_false_keeps_none(persistent):
    """Between two epochs nothing is kept, with persistent workers too; and every epoch is right."""
    with open_loader([MB] * 6, keep_pages=False, persistent_workers=persistent) as loader:
        for _ in range(2):
            most, total = run(loader)
            assert (0, 15) == (resident(loader), total)
            assert most >= MB


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_held_batch_gives_back_when_it_is_dropped(persistent):
    """The usual loop variable outlives its epoch; its pages go with it, on any thread."""
    before = file_bytes()
    with open_loader([LARGE], keep_pages=False, persistent_workers=persistent) as loader:
        for _ in range(2):
            held = list(loader)
            assert file_bytes() - before >= LARGE
            assert int(held[0].sum()) == int(held[0].numel()) * int(held[0][0])
            on_a_thread(held.clear)
            assert file_bytes() - before < LARGE
            assert resident(loader) == 0


@pytest.fixture
def available(monkeypatch):
    """Returns a list whose only number is what the trainer finds available, in bytes."""
    values, trainer = [1 << 40], os.getpid()
    monkeypatch.setattr(
        limits, "available_bytes", lambda: values[0] if os.getpid() == trainer else 1 << 40
    )
    return values


@pytest.mark.core(first=1)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("wakes", [False, True])
def test_idle_pages_go_to_another_loader(available, persistent, short, wakes):
    """They stay while there is room for them and more; the loader that lost them goes on."""
    with (
        open_loader([MB] * 8, persistent_workers=persistent) as first,
        open_loader([MB] * 8, persistent_workers=wakes) as second,
    ):
        if wakes:
            run(second)
        run(first)
        waiting = resident(first)
        available[0] = (2 if short else 4) * waiting
        run(second)

        assert (0 if short else waiting) == resident(first)
        assert run(first)[1] == sum(range(8))


@pytest.mark.thorough
def test_idle_pages_go_while_an_epoch_runs(available):
    """Memory that becomes short is noticed, where much of it is in use."""
    with open_loader([MB] * 8) as first, open_loader([2 * LARGE] * 8) as second:
        run(first)
        batches = iter(second)
        next(batches)
        assert resident(first) > 0
        available[0] = 1
        time.sleep(LOOKS_EVERY_S)  # the next batch is behind the trainer's next look
        for _ in batches:
            pass
        assert resident(first) == 0


@pytest.mark.thorough
def test_a_batch_that_is_held_keeps_its_pages(available):
    """Giving back takes nothing from a batch of an epoch that is over."""
    with open_loader([MB] * 8) as first, open_loader([MB] * 8) as second:
        for made in first:
            last = made
        del made
        available[0] = 1
        run(second)
        assert bool((last == 7).all())
        assert 0 < resident(first) < 2 * MB


@pytest.mark.thorough
def test_a_shortage_takes_pages_of_a_running_epoch():
    """Pages that wait for later batches go; those of batches on their way or held stay."""
    with open_loader([MB] * 16) as running, open_loader([MB]) as short:
        batches = iter(running)
        held = [next(batches) for _ in range(5)]
        del held[1:]
        before = resident(running)
        account().end_shortage(short._service.pool)

        assert resident(running) <= before - 2 * MB
        assert [number % 100 for number in range(5, 16)] == [int(made[0]) for made in batches]
        assert bool((held[0] == 0).all())


@pytest.mark.thorough
def test_finalizers_may_wait_for_other_threads(monkeypatch):
    """User code that runs while an epoch begins may wait for a thread that begins one: no lock."""
    with open_loader([MB] * 4, persistent_workers=True) as idle, open_loader([MB] * 4) as other:
        run(idle)
        finished = []

        def look():  # in the place of a finalizer, which may run at any line
            monkeypatch.undo()
            thread = threading.Thread(target=lambda: finished.append(run(other)))
            thread.start()
            thread.join(20)
            return 1 << 40

        pool = SegmentPool()
        monkeypatch.setattr(limits, "available_bytes", look)
        segment = pool.acquire(Shape(1, 2, 1 << 20, 1 << 20))
        pool.discard(segment)

    assert 1 == len(finished)


def test_pools_bear_other_threads():
    """Segments that come and go on one thread are no error for the account on another."""
    stop, failures = threading.Event(), []

    def come_and_go():
        pool = SegmentPool()
        shape = Shape(1, 2, 1 << 20, 1 << 20)
        try:
            while not stop.is_set():
                pool.release(pool.acquire(shape))
                pool.clear()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        pool = SegmentPool()
        for _ in range(300):
            account().end_shortage(pool)
            account().make_room(pool, available_bytes=0)
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()

    assert [] == failures


@pytest.mark.thorough
def test_ranks_of_a_machine_share_its_memory(monkeypatch):
    """Each rank's default for ring_bytes is its part of half of the memory."""
    monkeypatch.setattr(limits, "total_bytes", lambda: 1 << 34)
    found = []
    for ranks in (None, "1", "4", "0", "none"):
        if ranks is None:
            monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        else:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        loader = open_loader([1000])
        iterator = iter(loader)
        found.append(iterator._transport.ledger.ring_bytes)
        loader.close()

    assert found == [1 << 33, 1 << 33, 1 << 31, 1 << 33, 1 << 33]
