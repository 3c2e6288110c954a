"""The number of fetching threads that "auto" finds, in loops that are played without a clock."""

import pytest

from shmloader.worker import threads
from shmloader.worker.threads import _Pace


class Clock:
    """The time and the CPU time that a pace sees."""

    def __init__(self):
        self.now = self.cpu = 0.0

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.cpu


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(threads, "time", made)
    return made


def settle(clock, wait_s, compute_s, held, samples=5000):
    """
    Play a worker whose samples wait and compute, one at a time where they compute.

    Args:
        held: How many samples the worker holds, of which a thread has begun some.

    Returns:
        How many threads there are at last.
    """
    pace, count = _Pace(), threads._AT_FIRST
    for _ in range(samples):
        rate = min(count / (wait_s + compute_s), 1 / max(compute_s, 1e-9))
        clock.now += 1 / rate
        clock.cpu += compute_s
        count = pace.judge(count, max(0, held - count))
    return count


@pytest.mark.parametrize("wait_ms", [1, 5, 20, 100, 200])
def test_samples_that_only_wait_all_wait_at_once(clock, wait_ms):
    """While the core is idle and samples wait, more threads are started."""
    assert 64 <= settle(clock, wait_ms / 1e3, 1e-5, held=64) <= 66


@pytest.mark.parametrize(("wait_ms", "compute_ms"), [(20, 2), (50, 1), (5, 1), (1, 0.2)])
def test_enough_threads_for_a_busy_core(clock, wait_ms, compute_ms):
    """As many as keep it computing while the others wait, and not many times that."""
    needed = (wait_ms + compute_ms) / compute_ms

    assert 0.8 * needed <= settle(clock, wait_ms / 1e3, compute_ms / 1e3, held=512) <= 3.5 * needed


def test_samples_that_only_compute_get_no_more_threads(clock):
    """They would take turns at Python's lock."""
    assert settle(clock, 0, 2e-3, held=512) <= 2 * threads._AT_FIRST


def test_threads_that_nothing_waits_for_are_not_started(clock):
    """As many as the worker holds samples are enough."""
    assert settle(clock, 0.1, 0, held=3) == threads._AT_FIRST
