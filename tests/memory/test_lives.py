"""Invariant 6 on real loaders: batches may outlive everything that made them."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from shmloader import DataLoader
from shmloader.core import look_for_children
from tests.helpers.datasets import Numbered, batch, state

SIZE = 4
BATCHES = 12
pytestmark = pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")


def open_loader(**options):
    settings = {"batch_size": SIZE, "num_workers": 1}
    return DataLoader(Numbered(SIZE * BATCHES), **{**settings, **options})


def assert_intact(held):
    for number, made in held:
        assert torch.equal(batch(number, SIZE), made)


def by_close(loader, batches):
    loader.close()


def by_dropping(loader, batches):
    """Nothing is closed: the names just go."""


def by_the_end(loader, batches):
    assert sum(1 for _ in batches) == BATCHES - 3


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("end", [by_close, by_dropping, by_the_end])
def test_batches_outlive_iterator_loader_and_workers(end, persistent):
    """A held batch stays right when all that made it is gone, and its memory goes with it."""
    loader = open_loader(persistent_workers=persistent)
    batches = iter(loader)
    held = [(number, next(batches)) for number in range(3)]
    end(loader, batches)
    del loader, batches
    gc.collect()
    others = open_loader()
    assert sum(1 for _ in others) == BATCHES
    assert_intact(held)


def test_a_mapping_lives_as_long_as_its_batches():
    """The segment is unmapped by the last batch, not before and not after."""
    before = mapped_segments()
    loader = open_loader()
    held = list(loader)
    loader.close()
    del loader
    gc.collect()
    assert mapped_segments() == before + 1
    assert_intact(enumerate(held))
    held.clear()
    assert mapped_segments() == before


def mapped_segments():
    # By their inodes: one that is guarded has several lines.
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "memfd:shmloader" in line})


def test_loaders_dropped_in_mid_epoch():
    """Iterators dropped without close leave nothing; the conftest looks."""
    for drawn in range(6):
        batches = iter(open_loader())
        for _ in range(drawn):
            next(batches)
        del batches


def test_a_loader_used_from_a_thread():
    """A thread may iterate, and its batches may be read and dropped elsewhere."""
    held = []
    loader = open_loader()
    thread = threading.Thread(target=lambda: held.extend(enumerate(loader)))
    thread.start()
    thread.join()
    assert len(held) == BATCHES
    assert_intact(held)
    loader.close()


def test_two_loaders_on_two_threads():
    """Threads that iterate side by side do not disturb each other."""
    held = [[], []]
    loaders = [open_loader(), open_loader(in_order=True, slots=2)]

    def iterate(number):
        for _ in range(3):
            held[number].extend(enumerate(loaders[number]))

    threads = [threading.Thread(target=iterate, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, loader in enumerate(loaders):
        assert len(held[number]) == 3 * BATCHES
        assert_intact(held[number])
        loader.close()


def test_a_child_that_drops_batches_changes_nothing():
    """A forked child's releases leave the trainer's batches and slots as they are."""
    with open_loader(slots=10) as loader:
        batches = iter(loader)
        held = [(number, next(batches)) for number in range(3)]
        pid = os.fork()
        if pid == 0:
            held.clear()
            del batches, loader
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert state(loader, "leased") == 3
        held.extend(enumerate(batches, 3))
        assert len(held) == BATCHES
        assert_intact(held)
        del batches
    look_for_children()


def test_a_child_may_have_its_own_loader():
    """A child forked while the parent iterates runs an epoch of its own."""
    with open_loader() as loader:
        batches = iter(loader)
        next(batches)
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(Exception):
                made = list(open_loader())
                assert_intact(enumerate(made))
                code = 0 if len(made) == BATCHES else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sum(1 for _ in batches) == BATCHES - 1
        del batches
    look_for_children()


@pytest.mark.thorough
def test_a_hundred_loaders_leave_memory_where_it_was():
    """Loaders one after another leave no map, no descriptor and no page behind."""

    def use():
        with open_loader() as loader:
            held = [next(iter(loader))]
        return held

    for _ in range(3):
        use()
    gc.collect()  # what other tests left to it
    before = (mapped_segments(), len(os.listdir("/proc/self/fd")), resident_bytes())
    for _ in range(100):
        use()
    gc.collect()
    maps, descriptors, resident = (
        mapped_segments(),
        len(os.listdir("/proc/self/fd")),
        resident_bytes(),
    )
    assert before[:2] == (maps, descriptors)
    assert resident - before[2] < 8 << 20


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


AT_EXIT = """
import torch
from tests.helpers.datasets import Numbered
from shmloader import DataLoader

loader = DataLoader(Numbered(40), batch_size=2, num_workers=2, persistent_workers={persistent})
batches = iter(loader)
held = [next(batches), next(batches)]
array = held[0].numpy()
print(held[1][0, 1].item())
"""


@pytest.mark.core(every=2)
@pytest.mark.parametrize("persistent", [False, True])
def test_interpreter_exit_with_everything_alive(persistent):
    """A script that just ends, with everything alive, ends cleanly and silently."""
    checkout = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(persistent=persistent)],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2001.0\n", "")


class Interrupting:
    """A leaf that interrupts the trainer while it is read, for two of the batches."""

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.number in (0, 3):
            raise KeyboardInterrupt


class Interrupts(Numbered):
    """Numbered samples with such a leaf."""

    def __getitem__(self, index):
        return super().__getitem__(index), Interrupting(index)


@pytest.mark.parametrize("slots", [1, 6])
@pytest.mark.parametrize("in_order", [True, False])
def test_an_interrupt_while_a_batch_is_read_loses_that_batch_alone(in_order, slots):
    """The epoch goes on afterwards, with all other batches and all slots."""
    loader = DataLoader(
        Interrupts(12),
        batch_size=None,
        num_workers=1,
        prefetch_factor=1,
        slots=slots,
        in_order=in_order,
    )
    with loader:
        batches = iter(loader)
        delivered = []
        for _ in range(12):
            try:
                delivered.append(next(batches)[1].number)
            except KeyboardInterrupt:
                delivered.append(None)
        assert [None, 1, 2, None, *range(4, 12)] == delivered
        with pytest.raises(StopIteration):
            next(batches)
        del batches
        assert state(loader, "free") == slots
