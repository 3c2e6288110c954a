"""The number of fetching threads that "auto" finds, in loops that are played without a clock."""

import threading
import time
from collections import deque
from queue import SimpleQueue

import pytest

from shmloader.worker import pace
from shmloader.worker.pace import Pace
from shmloader.worker.threads import FetchThreads, Task


class Clock:
    """The time that a pace sees."""

    def __init__(self):
        self.now = 1.0
        self.cpu = 0.0

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.cpu


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


class Worker:
    """A worker whose samples wait, and compute one at a time where they compute."""

    def __init__(self, clock, held):
        self.clock = clock
        self.held = held  # samples, of which a thread has begun some
        self.pace = Pace()
        self.count = pace.AT_FIRST

    def fetch(self, wait_s, compute_s, samples=5000, between_s=0.0):
        """
        Play so many samples. Returns the counts of threads behind the first half of them.

        Between two samples of a thread are `between_s` of Python's lock.
        """
        counts = []
        for _ in range(samples):
            begun = min(self.count, self.held)
            rate = begun / (wait_s + compute_s + between_s)
            rate = min(rate, 1 / max(compute_s + between_s, 1e-9))
            self.clock.now += 1 / rate
            self.clock.cpu += compute_s + between_s
            task_s = wait_s + compute_s if between_s else begun / rate
            if self.pace.note(task_s, compute_s, self.clock.now):
                self.count = self.pace.judge(self.count, self.held)
            counts.append(self.count)
        return counts[samples // 2 :]


@pytest.mark.parametrize("wait_ms", [1, 5, 20, 100, 200])
def test_samples_that_only_wait_all_wait_at_once(clock, wait_ms):
    """While samples wait for a thread and more threads fetch more, more threads are started."""
    counts = Worker(clock, held=64).fetch(wait_ms / 1e3, 1e-5)

    assert 0.75 * 64 <= min(counts)
    # Fewer only while they show that a task takes no longer than it has to.
    assert 0.9 * len(counts) <= counts.count(64)


@pytest.mark.parametrize(("wait_ms", "compute_ms"), [(20, 2), (50, 1), (5, 1), (1, 0.2)])
def test_enough_threads_for_a_busy_core(clock, wait_ms, compute_ms):
    """As many as keep it computing while the others wait, and not many times that."""
    needed = (wait_ms + compute_ms) / compute_ms
    counts = Worker(clock, held=512).fetch(wait_ms / 1e3, compute_ms / 1e3)

    assert needed <= max(counts) <= 2 * needed
    # Now and then a few less show that a task takes no longer than it has to.
    assert 0.9 * needed <= min(counts)


def test_samples_that_only_compute_get_no_more_threads(clock):
    """They would take turns at Python's lock."""
    assert max(Worker(clock, held=512).fetch(0, 2e-3)) <= 2 * pace.AT_FIRST


def test_threads_that_nothing_waits_for_are_not_started(clock):
    """As many as the worker holds samples are enough."""
    assert max(Worker(clock, held=3).fetch(0.1, 0)) <= 3


def test_threads_that_wait_between_samples_are_too_many(clock):
    """Where Python's lock is the limit, threads look idle though there is enough to fetch."""
    worker = Worker(clock, held=512)
    counts = worker.fetch(1e-3, 0, samples=40_000, between_s=25e-6)

    assert 40 <= min(counts)
    assert max(counts) <= 80


def test_idle_threads_of_a_slow_trainer_stay(clock):
    """Its next burst is fetched as fast as the last one."""
    worker = Worker(clock, held=64)
    before = worker.fetch(0.02, 1e-5)[-1]
    for _ in range(100):
        worker.clock.now += 0.1
        for _ in range(32):
            worker.clock.now += 1e-3
            worker.pace.note(0.02, 1e-5, worker.clock.now)
        worker.count = worker.pace.judge(worker.count, worker.held)

    assert worker.count == before == 64


def test_a_server_that_became_slower_gets_more_threads(clock):
    """Threads that were enough for a short wait are not for a long one."""
    worker = Worker(clock, held=512)
    before = max(worker.fetch(0.004, 0.001))
    after = min(worker.fetch(0.1, 0.001, samples=40_000)[15_000:])

    assert before <= 10
    assert 80 <= after


def test_a_server_that_became_faster_gets_fewer_threads(clock):
    """What was needed for a long wait only waits for its turn behind a short one."""
    worker = Worker(clock, held=512)
    assert 100 <= max(worker.fetch(0.1, 0.001))
    assert max(worker.fetch(0.004, 0.001, samples=60_000)) <= 12


def test_as_many_threads_as_samples_that_wait_together():
    """With one less, the last sample would wait for the others' whole time once more."""
    done = SimpleQueue()
    fetching = FetchThreads(None, done.put)
    requests = deque()
    for _ in range(16):
        while len(requests) < 4:
            requests.append([Task(lambda _: time.sleep(0.06), 0, None) for _ in range(8)])
            for task in requests[-1]:
                fetching.put(task)
        while not all(task.is_done for task in requests[0]):
            done.get(timeout=60)
        fetching.drop(requests.popleft())
    found = fetching.count
    fetching.end()

    assert found == 32


def test_threads_that_are_too_many_leave_before_they_begin_another_sample():
    """They would otherwise fetch all that was put, and be counted among fewer."""
    begun, go, done = SimpleQueue(), threading.Event(), SimpleQueue()

    def fetch(_):
        begun.put(None)
        go.wait(60)

    fetching = FetchThreads(8, done.put)
    for _ in range(20):
        fetching.put(Task(fetch, 0, None))
    for _ in range(8):
        begun.get(timeout=60)
    fetching.end()
    go.set()
    for _ in range(8):
        assert done.get(timeout=60).is_done
    for thread in threading.enumerate():
        if thread.name.startswith("shmloader fetch"):
            thread.join(60)

    assert done.empty()
    assert begun.empty()


def test_a_thread_that_was_too_many_is_wanted_again():
    """It stays, and no other one is started."""
    before = {thread.ident for thread in threading.enumerate()}
    go, done = threading.Event(), SimpleQueue()
    fetching = FetchThreads(4, done.put)
    for _ in range(4):
        fetching.put(Task(lambda _: go.wait(60), 0, None))
    own = {thread.ident for thread in threading.enumerate()} - before
    fetching._set_count(2)
    fetching._set_count(4)

    assert {thread.ident for thread in threading.enumerate()} - before == own
    go.set()
    for _ in range(4):
        done.get(timeout=60)
    fetching.end()
