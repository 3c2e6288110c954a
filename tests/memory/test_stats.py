"""What a loader counts: sums over segments, and what outlives a segment."""

import dataclasses
from types import SimpleNamespace

import numpy
import pytest

from shmloader.memory import segment_pool
from shmloader.stats import CacheStats, Epoch, Stats, Times, WorkerStats

SUMS = {
    "batches": 3,
    "bytes": 4096,
    "waited_ns": 1_500_000_000,
    "spilled": 1,
    "restarts": 2,
    "pickled_bytes": 10,
    "pickled_batches": 1,
    "looks_found": 6,
    "looks_vain": 7,
    "looks_ns": 500_000_000,
}
LEDGER = SimpleNamespace(
    resident_bytes=8192,
    page_locked_bytes=4096,
    sums=SUMS.copy,
    counts=lambda: {"free": 2, "leased": 1, "retired": 4},
)
# In the order of the table: fetching, collating, starved and blocked ns, batches, bytes, left out,
# looks that found something, and in vain.
CLOCKS = numpy.array(
    [
        (300_000_000, 200_000_000, 250_000_000, 125_000_000, 2, 4000, 5, 8, 9),
        (400_000_000, 600_000_000, 2_000_000_000, 4_000_000_000, 1, 96, 2, 1, 0),
    ],
    segment_pool.LAYOUT.dtype("worker_clock"),
).tobytes()


@pytest.fixture
def stats(monkeypatch):
    """What is read of a ledger with two workers."""
    monkeypatch.setattr(
        segment_pool, "BatchLog", lambda ledger: SimpleNamespace(clocks=lambda: CLOCKS)
    )
    return segment_pool._stats_of(LEDGER)


def test_a_ledgers_counts_are_read(stats):
    """The clocks of all workers are added, and times are in seconds."""
    assert (1.5, 1.5, 2.25, 4.125) == (
        stats.wait_s,
        stats.worker_busy_s,
        stats.worker_starved_s,
        stats.worker_blocked_s,
    )
    assert 7 == stats.left_out
    assert (3, 4096, 4, LEDGER.counts()) == (stats.batches, stats.bytes, stats.retired, stats.slots)
    assert (
        WorkerStats(0.3, 0.2, 0.25, 0.125, 2, 4000, left_out=5, looks_found=8, looks_vain=9),
        WorkerStats(0.4, 0.6, 2.0, 4.0, 1, 96, left_out=2, looks_found=1),
    ) == stats.workers


def epoch(number):
    return Epoch(number, True, 1, 2, 3, 4.0, 5.0, 6.0, Times(), Times(), (), {}, 0, 0.0, 0.0)


def cache(number, hits):
    return CacheStats(number, "Pictures", hits, 0, 0, 0, 0, 0)


def test_records_add_up():
    """Every count is added, states that one of them knows are kept, a shared cache counts once."""
    apart = {"slots", "spills", "copied", "next", "step", "workers", "caches", "epochs", "note"}
    names = [each.name for each in dataclasses.fields(Stats) if each.name not in apart]
    numbers = {name: number for number, name in enumerate(names, start=1)}
    one = Stats(
        **numbers,
        slots={"free": 1, "leased": 2},
        spills={"too_few_slots": 1},
        copied={"direct": 2},
        workers=(WorkerStats(batches=1), WorkerStats(batches=2)),
        caches=(cache(1, hits=3), cache(2, hits=4)),
        epochs=(epoch(1),),
    )
    other = Stats(
        **numbers,
        slots={"free": 3, "retired": 4},
        spills={"too_few_slots": 2, "for_children": 3},
        copied={"direct": 1, "staged": 1},
        workers=(WorkerStats(batches=4),),
        caches=(cache(2, hits=5), cache(3, hits=6)),
        epochs=(epoch(2),),
    )
    total = one + other
    said = dataclasses.replace(one, note="why") + other

    assert ("why", "why", "") == (said.note, (other + said).note, total.note)
    assert {"free": 4, "leased": 2, "retired": 4} == total.slots
    assert {"too_few_slots": 3, "for_children": 3} == total.spills
    assert {"direct": 3, "staged": 1} == total.copied
    assert (WorkerStats(batches=5), WorkerStats(batches=2)) == total.workers
    assert [1, 2] == [each.number for each in total.epochs]
    assert [(1, 3), (2, 5), (3, 6)] == [(each.number, each.hits) for each in total.caches]
    assert {name: 2 * number for name, number in numbers.items()} == {
        name: getattr(total, name) for name in names
    }


def test_a_segment_that_is_gone_holds_nothing(stats):
    """Counts outlive their segment; pages and slots are gone with it."""
    past = stats.past()

    assert (0, {}) == (past.resident_bytes, past.slots)
    assert stats == dataclasses.replace(
        past, resident_bytes=8192, locked_bytes=4096, slots=stats.slots
    )


def times(*durations_ns):
    counts = tuple((ns, durations_ns.count(ns)) for ns in sorted(set(durations_ns)))
    return Times.of(sum(durations_ns), max(durations_ns), counts)


def test_percentiles_are_of_all_times():
    """A percentile is the duration that so many of 100 do not exceed."""
    found = times(*range(1, 101))

    assert (100, 50e-9, 90e-9, 99e-9, 100e-9) == (
        found.count,
        found.p50_s,
        found.p90_s,
        found.p99_s,
        found.longest_s,
    )
    assert 5050e-9 == pytest.approx(found.total_s)


def test_no_percentile_exceeds_the_longest():
    """The middle of a bucket may lie above all that is in it."""
    assert 90e-9 == Times.of(90, 90, ((96, 1),)).p99_s


def test_times_of_two_loops_are_times_of_one():
    """The percentiles of a sum are those of all durations together."""
    one, other = times(1, 2, 3, 4), times(2, 100)
    both = times(1, 2, 3, 4, 2, 100)
    total = one + other

    assert (both.count, both.p50_s, both.p99_s, both.counts) == (
        total.count,
        total.p50_s,
        total.p99_s,
        total.counts,
    )
    assert (one, one) == (one + Times(), Times() + one)
