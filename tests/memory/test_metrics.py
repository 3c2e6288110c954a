"""What a loader counts: sums over segments, and what outlives a segment."""

import dataclasses
from types import SimpleNamespace

from shmloader.memory import pool
from shmloader.metrics import Stats

LEDGER = SimpleNamespace(
    batches=3,
    bytes=4096,
    waited_ns=1_500_000_000,
    spilled=1,
    restarts=2,
    resident_bytes=8192,
    pickled_bytes=10,
    pickled_batches=1,
    counts=lambda: {"free": 2, "leased": 1, "retired": 4},
    clocks=lambda: [(0.5, 0.25, 0.125), (1.0, 2.0, 4.0)],
)


def test_a_ledgers_counts_are_read():
    """The clocks of all workers are added, and times are in seconds."""
    stats = pool._stats_of(LEDGER)

    assert (1.5, 1.5, 2.25, 4.125) == (
        stats.wait_s,
        stats.worker_busy_s,
        stats.worker_starved_s,
        stats.worker_blocked_s,
    )
    assert (3, 4096, 4, LEDGER.counts()) == (stats.batches, stats.bytes, stats.retired, stats.slots)


def test_records_add_up():
    """Every count of two records is added, and states that only one of them knows are kept."""
    numbers = {each.name: number for number, each in enumerate(dataclasses.fields(Stats), start=1)}
    one = Stats(**{**numbers, "slots": {"free": 1, "leased": 2}})
    other = Stats(**{**numbers, "slots": {"free": 3, "retired": 4}})

    total = dataclasses.asdict(one + other)
    assert {"free": 4, "leased": 2, "retired": 4} == total.pop("slots")
    assert {name: 2 * number for name, number in numbers.items() if name != "slots"} == total


def test_nothing_added_changes_nothing():
    """An empty record is neutral."""
    stats = pool._stats_of(LEDGER)

    assert stats == stats + Stats() == Stats() + stats


def test_a_segment_that_is_gone_holds_nothing():
    """Counts outlive their segment; pages and slots are gone with it."""
    stats = pool._stats_of(LEDGER)
    past = stats.past()

    assert (0, {}) == (past.resident_bytes, past.slots)
    assert stats == dataclasses.replace(past, resident_bytes=8192, slots=stats.slots)
