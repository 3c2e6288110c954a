"""The rules for slots and bytes, each on a ledger that only has numbers."""

from collections import Counter
from types import SimpleNamespace

import pytest

from shmloader.memory import limits, policy
from shmloader.memory.policy import reserved_slots
from shmloader.memory.segment import shape_of
from shmloader.stats.records import Spill
from shmloader.transport.budget import Budget

MANY = 1 << 40


class Ledger:
    """A ledger with room for everything, unless a test says otherwise."""

    ring_bytes = 4096
    range_bytes = 8192
    spares = 16
    retired = 0

    def __init__(self, forked=0, **values):
        self.is_time_to_look = lambda: False
        self.counts = lambda: {"forked": forked, "fenced": 0, "leased": 0}
        self.__dict__.update(values)


def budget_of(ledger, reserve=2, spills=0):
    """Returns a budget and the pool that counts its spills."""
    pool = SimpleNamespace(spills=Counter(earlier=spills))
    return Budget(ledger, pool, slots=8, reserve=reserve), pool


@pytest.mark.parametrize(
    ("options", "slots", "ring_bytes"),
    [
        ({"slots": 7, "ring_bytes": 100}, 7, 100),
        ({"slots": 7, "slot_bytes": 60, "ring_bytes": 100}, 7, 100),
        ({"ring_bytes": 100}, 2 * 3 + 6, 100),
        ({"slot_bytes": 30, "ring_bytes": 100}, 3, 100),
        ({"slot_bytes": 300, "ring_bytes": 100}, 1, 100),
        ({"slot_bytes": 1, "ring_bytes": 100}, 2 * 3 + 6, 100),
    ],
)
def test_shape_follows_the_options(options, slots, ring_bytes):
    """slots is taken as it is; without it, what torch has in flight and a few more, if they fit."""
    given = {"slots": None, "slot_bytes": None, "ring_bytes": None, **options}
    shape = shape_of(2, 3, **given)

    assert (2, slots, ring_bytes) == (shape.workers, shape.slots, shape.ring_bytes)


@pytest.mark.parametrize("in_flight", [1, 4, 100])
@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("slots", [1, 2, 3, 6, 200])
def test_reserve_leaves_a_slot_and_keeps_workers_busy(in_flight, workers, slots):
    """The reserve is never more than torch has in flight nor than there are slots."""
    reserve = reserved_slots(in_flight, workers, slots)

    assert 1 <= reserve <= min(in_flight, slots)
    if slots > in_flight + 1:
        assert reserve == in_flight  # all that torch has in flight
    if slots > workers + 2:
        assert reserve < slots - 1  # and the trainer still has two to hold


@pytest.mark.parametrize("grows", [False, True])
def test_a_slot_more_is_no_reason_to_spill(grows):
    """If slots are short, and one more can be put into use, the batch stays."""
    short = Ledger(
        lack=lambda slot, reserve, has_grown=False: 0 if has_grown else 2, grow=lambda: grows
    )
    budget, _ = budget_of(short)
    budget._grows = True

    assert (None if grows else Spill.TOO_FEW_SLOTS) is budget.reason_to_spill(0)
    assert budget.reason_to_spill(0, stays=False) is None


@pytest.mark.parametrize(("slots", "spares", "most"), [(8, 16, 4), (8, 2, 1), (1, 2, 0)])
def test_many_retired_slots_make_workers_copy_in(slots, spares, most):
    """Half of the slots, or of their spares if these are fewer, may be retired before that."""
    pool = SimpleNamespace(spills=Counter())
    budgets = [
        Budget(Ledger(spares=spares, retired=most + more), pool, slots, reserve=1)
        for more in (0, 1)
    ]

    assert [False, True] == [budget.copies_in() for budget in budgets]


def test_a_system_may_not_say_how_much_memory_it_has(monkeypatch):
    """Then a loader takes half of 8 GiB at most."""
    monkeypatch.setattr(limits, "total_bytes", lambda: None)
    monkeypatch.setattr(limits, "ranks", lambda: 1)
    shape = shape_of(2, 3, slots=None, slot_bytes=None, ring_bytes=None)

    assert 0 < shape.ring_bytes <= 4 << 30


@pytest.mark.parametrize("reason", Spill)
def test_the_sixteenth_spill_is_worth_advice(reason):
    """One spill of many leaves advice, once, which names this loader's numbers."""
    budget, pool = budget_of(Ledger(), spills=14)
    given = []
    for _ in range(20):
        pool.advice = None
        budget.note_spill(reason)
        given.append(pool.advice)

    assert 34 == pool.spills.total()
    assert [1] == [i for i, text in enumerate(given) if text is not None]
    text = given[1]
    assert text.startswith("16 batches were copied out of their slots")
    assert ("{" in reason.cure) == ("now 8" in text or "now 4096" in text)
    assert "{" not in text


def test_advice_names_the_slots_that_children_hold():
    """Who holds nothing is told of the processes that were forked, and how many slots they hold."""
    budget, pool = budget_of(Ledger(forked=3), spills=15)
    budget.note_spill(Spill.TOO_FEW_SLOTS)

    assert "forked" in pool.advice and "3 slots" in pool.advice


@pytest.mark.parametrize(
    ("outstanding", "lets_late", "left_bytes", "placed"),
    [
        (0, False, policy.PRIVATE_BYTES, True),  # no end would make room
        (1, False, policy.PRIVATE_BYTES, False),
        (1, True, policy.PRIVATE_BYTES, True),  # those before it may wait for this one
        (1, True, policy.PRIVATE_BYTES - 1, False),
    ],
)
def test_a_request_takes_the_reserve_when_nothing_makes_room(
    monkeypatch, outstanding, lets_late, left_bytes, placed
):
    """It leaves 32 MiB, but less if no other is under way, or if it has waited for too long."""
    ledger = Ledger(outstanding=lambda: outstanding, lacking=lambda _: 1, fits=lambda _: True)
    budget, _ = budget_of(ledger)
    monkeypatch.setattr(budget._headroom, "has", lambda added, reserve=0: left_bytes >= reserve)
    monkeypatch.setattr(budget, "make_room", lambda: None)
    if lets_late:
        monkeypatch.setattr(policy, "SHORTAGE_S", -1.0)

    assert placed == budget.can_place(worker=0, ticket=1, request_bytes=1)


@pytest.mark.parametrize("is_seated", [False, True])
def test_a_large_request_waits_for_its_worker_to_start(monkeypatch, is_seated):
    """A worker that still imports will take memory that no look can see yet."""
    lacking = policy.RESERVE_BYTES + 1
    ledger = Ledger(
        outstanding=lambda: 1,
        lacking=lambda _: lacking,
        fits=lambda _: True,
        is_seated=lambda worker: is_seated,
    )
    budget, _ = budget_of(ledger)
    monkeypatch.setattr(budget._headroom, "has", lambda added, reserve=0: True)

    assert is_seated == budget.can_place(worker=0, ticket=1, request_bytes=lacking)
