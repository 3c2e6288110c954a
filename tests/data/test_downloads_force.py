"""`downloaded()` under force: many processes in one folder, killed at any moment."""

import contextlib
import mmap
import multiprocessing
import os
import random
import signal
import time
import zlib

import pytest

from shmloader import downloaded
from shmloader.data import shelf
from tests.data.test_downloads import BLOCK, files_in, taken_bytes

KEYS, PROCESSES = 120, 4
FORK = multiprocessing.get_context("fork")


def value_of(key):
    """Up to about 60 kB, which a kill can cut."""
    return random.Random(key).randbytes(500 * (key % 121))


def ask(cache, seed, seconds, wrong):
    """Ask for keys at random for some time; note a value that is wrong."""
    random.seed(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = random.randrange(KEYS)
        if cache(key) != value_of(key):
            wrong[0] = 1


def held_bytes(cache):
    """Sum the files while nothing can be added or deleted; one may get its own name meanwhile."""
    found = {}
    with cache._shelf._locked(20):
        for path in files_in(cache._shelf.folder):
            with contextlib.suppress(FileNotFoundError):
                blocks = -(-path.stat().st_size // BLOCK)
                found[path.parent.name + path.name.removesuffix(".new")] = blocks * BLOCK
    return sum(found.values())


def begin(cache, seed, seconds, wrong):
    process = FORK.Process(target=ask, args=(cache, seed, seconds, wrong))
    process.start()
    return process


@pytest.mark.thorough
def test_two_runs_share_a_limit(tmp_path, stress_seconds):
    """Processes of two runs at once never take more together than the folder may."""
    most_bytes = 200 * BLOCK
    caches = [downloaded(value_of, tmp_path, most_bytes) for _ in range(2)]
    wrong = mmap.mmap(-1, 1)
    running = [
        begin(caches[number % 2], number, stress_seconds, wrong) for number in range(PROCESSES)
    ]
    looks = []
    while any(process.is_alive() for process in running):
        looks.append(held_bytes(caches[0]))
        time.sleep(0.005)
    for process in running:
        process.join()

    assert [0] * PROCESSES == [process.exitcode for process in running]
    assert max(looks) <= most_bytes
    assert 0 == wrong[0]
    assert caches[0].stats().bytes == taken_bytes(tmp_path)
    assert 0 < min(cache.stats().hits for cache in caches)


@pytest.mark.thorough
def test_kills_cost_no_value_and_no_bytes(tmp_path, stress_seconds):
    """Whatever a kill leaves: values are right, and the files within their limit."""
    most_bytes = 200 * BLOCK
    cache = downloaded(value_of, tmp_path, most_bytes)
    wrong = mmap.mmap(-1, 1)
    end = time.monotonic() + 2 * stress_seconds
    running = [begin(cache, number, 600, wrong) for number in range(PROCESSES)]
    kills = 0
    while time.monotonic() < end:
        time.sleep(random.random() * 0.02)
        victim = random.randrange(PROCESSES)
        os.kill(running[victim].pid, signal.SIGKILL)
        running[victim].join()
        kills += 1
        running[victim] = begin(cache, 1000 + kills, 600, wrong)
        assert held_bytes(cache) <= most_bytes
    for process in running:
        process.kill()
        process.join()

    assert kills > 10
    assert 0 == wrong[0]
    # A new run: what is whole is right, what is not is fetched, and it may fill the folder again.
    again = downloaded(value_of, tmp_path, most_bytes)
    assert [zlib.crc32(value_of(key)) for key in range(KEYS)] == [
        zlib.crc32(again(key)) for key in range(KEYS)
    ]
    assert taken_bytes(tmp_path) <= again.stats().bytes <= most_bytes


def test_value_that_gets_its_name_while_its_record_gives_way(tmp_path, monkeypatch):
    """It goes too: a file without a record would take bytes that nothing counts, for ever."""
    cache = downloaded(value_of, tmp_path, 200 * BLOCK)
    cache(100)
    (path,) = files_in(tmp_path)
    written = path.rename(f"{path}.new")
    unlink = os.unlink

    def unlink_first(each):
        monkeypatch.setattr(os, "unlink", unlink)
        try:
            unlink(each)
        finally:
            if written.exists():
                written.rename(path)

    monkeypatch.setattr(os, "unlink", unlink_first)
    downloaded(value_of, tmp_path, 1)

    assert [] == files_in(tmp_path)


def test_value_that_gets_its_name_while_another_looks_at_it(tmp_path, monkeypatch):
    """The other process keeps its own copy, without a warning."""
    cache = downloaded(value_of, tmp_path, 200 * BLOCK)
    value = cache(100)
    (path,) = files_in(tmp_path)
    written = path.rename(f"{path}.new")
    try_lock = shelf._try_lock

    def rename_first(file):
        if written.exists() and os.fstat(file).st_ino == written.stat().st_ino:
            written.rename(path)
        return try_lock(file)

    monkeypatch.setattr(shelf, "_try_lock", rename_first)

    assert value == cache(100)
    assert [path] == files_in(tmp_path)
