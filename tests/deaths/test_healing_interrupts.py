"""An interrupt between any two lines of healing loses no batch, no slot and no process."""

import contextlib
import gc
import sys

import pytest

from shmloader import DataLoader
from shmloader.memory.segment import Segment, first_shape
from shmloader.trainer.tasks import Waiting
from shmloader.transport.healing import Healer
from tests.helpers.healing import open_loader, undisturbed
from tests.helpers.interrupts import Interrupt, Interrupter, insist
from tests.helpers.mortal import Mortal, MortalStream, Script
from tests.helpers.programs import process_table, wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore::shmloader.RestartWarning"),
    # If an interrupt hits the very line of a `with`, the collector closes what stays open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WORKERS = 2
DEATHS = 40


def workers_of(iterator):
    """Count the processes that work for an iterator: its own and its nursery's."""
    own = {process.pid for process in iterator._workers}
    mother = iterator._running.processes.mother.process.pid
    table = process_table()
    children = {pid for pid in table if table[pid].parent == mother}
    return len({pid for pid in table if pid in own} | children)


def test_oldest_ticket_may_wait_to_be_placed_again():
    """Even between a death and its healing, the ticket that must be granted is the oldest."""
    segment = Segment(first_shape(2, 4, 1 << 20))
    for ticket in range(3):
        assert segment.ledger.place(ticket % 2, ticket, [ticket])
    segment.ledger.recall(0)

    assert (0, [0, 2]) == (segment.ledger.oldest(), segment.ledger.unanswered(0))
    segment.ledger.reclaim(0)
    assert (1, []) == (segment.ledger.oldest(), segment.ledger.unanswered(0))
    segment.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "function"),
    [(Mortal, Healer.heal), (MortalStream, Healer.heal), (Mortal, Waiting.take)],
)
def test_interrupts_at_every_line(tmp_path, function, kind):
    """Going on after each interrupt gives torch's batches, from one worker at each desk."""
    if kind is Mortal:
        points = [f"item {number}" for number in range(DEATHS)]
        dataset, options = kind(Script(tmp_path), count=DEATHS), {"batch_size": 1}
    else:
        points = [f"drawn {number % 2}.{number // 2}" for number in range(DEATHS)]
        dataset, options = kind(Script(tmp_path), count=DEATHS // 2), {"batch_size": 2}
    (expected,) = undisturbed(dataset, **options)
    dataset.script = Script(tmp_path, *points)
    interrupter = Interrupter(function)

    batches, whole, slots = iterate_interrupted(dataset, interrupter, options)

    assert expected == batches
    assert len(expected) == whole
    # The request of an exhausted worker occupies its slot until the next epoch.
    assert 5 == slots["free"] + slots["placed"], slots
    assert [] == dataset.script.left
    assert interrupter.target > 60


def iterate_interrupted(dataset, interrupter, options):
    """Iterate twice; return the batches, how many there were without interrupts, and all slots."""
    batches = []
    with open_loader(
        DataLoader, dataset, **options, restarts=10 * DEATHS, slots=5, persistent_workers=True
    ) as loader:
        iterator = iter(loader)
        while (batch := insist(interrupter, lambda: next(iterator, None))) is not None:
            batches.append(batch.tolist())
        assert wait_until(lambda: workers_of(iterator) <= WORKERS)
        whole = sum(1 for _ in loader)
        return batches, whole, loader.stats().slots


def test_an_interrupt_before_the_first_worker_is_all_that_is_said(monkeypatch):
    """An iterator that an interrupt met before it had any process is dropped in silence."""
    said = []

    def interrupted(*_):
        raise Interrupt

    monkeypatch.setattr("shmloader.trainer.running.Workers", interrupted)
    monkeypatch.setattr(sys, "unraisablehook", lambda about: said.append(repr(about.exc_value)))
    with contextlib.suppress(Interrupt):
        iter(DataLoader(range(4), num_workers=1))
    gc.collect()

    assert [] == said
