"""Invariant 11: a segment belongs to the process that made it, whatever a forked child does."""

import gc
import multiprocessing
import os
import sys

import pytest
import torch

from shmloader import DataLoader
from tests.helpers.copies import Child
from tests.helpers.datasets import Numbered, batch, state

pytestmark = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")

SIZE = 4
BATCHES = 20
OURS = [pytest.param(DataLoader, id="ours")]
BOTH = [pytest.param(torch.utils.data.DataLoader, id="torch"), *OURS]


def open_loader(kind=DataLoader, **options):
    settings = {"batch_size": SIZE, "num_workers": 2, "multiprocessing_context": "fork"}
    return kind(Numbered(SIZE * BATCHES), **{**settings, **options})


def assert_epoch(made):
    """Every batch of an epoch, in order, with its own samples."""
    made = list(made)
    assert len(made) == BATCHES
    assert all(torch.equal(batch(number, SIZE), each) for number, each in enumerate(made))


def look_at_one(loader):
    for _ in loader:
        break


@pytest.mark.thorough
@pytest.mark.parametrize("kind", BOTH)
def test_children_iterate_an_inherited_loader(kind):
    """Children at once, a child's child and the parent each get every batch of a used loader."""
    loader = open_loader(kind)
    look_at_one(loader)

    def fork_again():
        look_at_one(loader)
        grandchild = Child(assert_epoch, loader)
        assert_epoch(loader)
        grandchild.end()

    children = [Child(assert_epoch, loader), Child(fork_again)]
    assert_epoch(loader)
    for child in children:
        child.end()
    assert_epoch(loader)


def close_it(loader, held):
    loader.close()


def leave_the_context(loader, held):
    with loader:
        sys.exit(0)


def drop_it_all(loader, held):
    held.clear()
    loader.__dict__.clear()
    gc.collect()


def iterate_twice_and_close(loader, held):
    assert_epoch(loader)
    assert_epoch(loader)
    loader.close()


WAYS = [close_it, leave_the_context, drop_it_all, iterate_twice_and_close]


@pytest.mark.core(first=1)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"restarts": 2}], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_child_forked_in_mid_epoch_takes_nothing(way, options):
    """The parent's live epoch goes on beside a child that closes, leaves, drops or iterates."""
    loader = open_loader(slots=12, **options)
    batches = iter(loader)
    held = [next(batches) for _ in range(4)]
    Child(way, loader, held).end()
    assert 4 == state(loader, "leased")
    assert_epoch([*held, *batches])
    assert_epoch(loader)
    loader.close()


@pytest.mark.parametrize("options", [{}, {"restarts": 2}], ids=str)
def test_workers_are_no_children_of_a_forked_child(options):
    """multiprocessing, which ends its children at exit, knows none of its parent's there."""
    batches = iter(open_loader(**options))

    assert "set()" == Child(lambda: multiprocessing.process._children).end()
    assert_epoch(batches)


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_an_inherited_live_iterator_is_refused(persistent):
    """next() of an iterator in a forked child says whose it is; the parent's goes on."""
    loader = open_loader(persistent_workers=persistent)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]

    def go_on():
        for _ in range(2):
            with pytest.raises(RuntimeError) as caught:
                next(batches)
        return str(caught.value)

    said = Child(go_on).end()
    assert f"belong to process {os.getpid()}" in said
    assert "iter(loader)" in said
    assert_epoch([*first, *batches])
    assert_epoch(loader)
    loader.close()


@pytest.mark.thorough
def test_a_child_that_closed_all_descriptors_closes_no_file_of_its_own():
    """Dropping an inherited batch closes no file that took the number of the segment's."""
    loader = open_loader(slots=12)
    batches = iter(loader)
    held = [next(batches)]

    def become_a_daemon():
        os.closerange(3, 1024)  # also what tells more of a failure than the exit code
        files = [os.open("/dev/null", os.O_WRONLY) for _ in range(64)]
        held.clear()
        loader.__dict__.clear()
        batches.__dict__.clear()
        gc.collect()
        assert len([os.fstat(file) for file in files]) == 64

    Child(become_a_daemon).end()
    assert_epoch([*held, *batches])
    loader.close()


def writes_that_show(kind, **options):
    """Hold seven batches, have a child write into all, and list those in which that shows."""
    loader = open_loader(kind, **options)
    batches = iter(loader)
    held = [next(batches) for _ in range(7)]
    leased = state(loader, "leased") if kind is DataLoader else len(held)

    def write():
        for each in held:
            each.fill_(-1)

    Child(write).end()
    shown = [number for number, each in enumerate(held) if bool((each == -1).all())]
    rest = [each for number, each in enumerate(held) if number not in shown]
    del batches, loader
    return leased, shown, all(bool((each >= 0).all()) for each in rest)


def test_writes_of_a_child_show_as_with_torch_while_batches_are_leased():
    """
    What a child writes into an inherited batch shows in the parent, as with torch. A batch that was
    copied out of its slot is private memory: docs/differences.md lists it.
    """
    everything = list(range(7))
    assert writes_that_show(torch.utils.data.DataLoader) == (7, everything, True)
    assert writes_that_show(DataLoader, slots=20) == (7, everything, True)
    leased, shown, rest_is_intact = writes_that_show(DataLoader, slots=7)
    assert 0 < leased < 7
    assert shown == list(range(leased))
    assert rest_is_intact
