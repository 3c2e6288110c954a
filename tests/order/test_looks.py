"""Looks before parking: only where there is a core for each process, and no batch changes."""

import gc
import weakref

import pytest
import torch

from shmloader import DataLoader, Pool
from shmloader.processes import scheduling
from shmloader.transport import looking
from tests.helpers.copies import Child
from tests.helpers.interrupts import Interrupt

COUNT = 400


@pytest.fixture
def cores(monkeypatch):
    """Set how many cores there are."""

    def set_to(count):
        monkeypatch.setattr(scheduling, "cores", lambda: count)

    return set_to


def looks_of(stats):
    """How often trainer and workers looked."""
    workers = sum(each.looks_found + each.looks_vain for each in stats.workers)
    return stats.looks_found + stats.looks_vain + workers


def loader_of(workers=1, **options):
    return DataLoader(range(COUNT), batch_size=2, num_workers=workers, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_looks_change_no_batch(cores, persistent):
    """They are counted, also for epochs that are over."""
    cores(64)
    with loader_of(2, persistent_workers=persistent) as loader:
        for _ in range(2):
            batches = torch.cat(list(loader))
            assert list(range(COUNT)) == batches.tolist()
        stats = loader.stats()
    assert looks_of(stats) > 0
    assert stats.looks_s > 0 or stats.looks_found + stats.looks_vain == 0


@pytest.mark.parametrize(
    ("count", "options"),
    [(1, {}), (1.5, {}), (2, {"workers": 2}), (3, {"seed_by": "batch", "fetch_threads": 3})],
)
def test_without_a_core_for_each_nobody_looks(cores, count, options):
    """This process counts, each worker, and each thread that fetches."""
    cores(count)
    with loader_of(**options) as loader:
        assert COUNT // 2 == len(list(loader))
        assert 0 == looks_of(loader.stats())


@pytest.mark.thorough
def test_workers_of_all_loaders_count(cores):
    """Those that live on between epochs too; they look again when the others are gone."""
    cores(2)
    with loader_of(persistent_workers=True) as first:
        assert COUNT // 2 == len(list(first))
        before = looks_of(first.stats())
        with loader_of(persistent_workers=True) as second:
            assert COUNT // 2 == len(list(second))
            assert 0 == looks_of(second.stats())
            assert not looking.may_look()
            assert COUNT // 2 == len(list(first))
            assert looks_of(first.stats()) <= before + 2  # of the wait that was under way
        assert looking.may_look()
        assert COUNT // 2 == len(list(first))
    assert looks_of(first.stats()) > before > 0


def test_a_pool_looks(cores):
    """As its calls are waited for."""
    cores(2)
    with Pool(1, "fork") as pool:
        assert list(range(200)) == list(pool.map(abs, range(200)))
        assert looks_of(pool.stats()) > 0


@pytest.mark.thorough
def test_a_forked_child_has_workers_of_its_own(cores):
    """Its parent's do not count there."""
    cores(2)

    def iterate():
        with loader_of() as loader:
            list(loader)
            return looks_of(loader.stats()) > 0

    with loader_of(persistent_workers=True) as loader:
        list(loader)
        assert repr(True) == Child(iterate).end()
        cores(1)
        assert not looking.may_look()
        assert repr(True) == Child(looking.may_look).end()


def test_an_interrupt_leaves_nobody_counted(cores, monkeypatch):
    """Workers whose end was interrupted count as long as they are known, and keep no memory."""
    cores(1)
    loader = loader_of(persistent_workers=True)
    list(loader)
    assert not looking.may_look()
    workers = weakref.ref(loader._iterator._running.processes)
    ledger = weakref.ref(loader._iterator._transport.ledger)

    def interrupts(owner):
        raise Interrupt

    monkeypatch.setattr(looking, "end", interrupts)
    with pytest.raises(Interrupt):
        loader.close()
    del loader
    gc.collect()
    assert (None, None, True) == (workers(), ledger(), looking.may_look())
