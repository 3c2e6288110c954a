"""Ends of iterators and processes with copies under way: who unregisters what, and what is left."""

import gc
import os
import threading

import pytest
import torch

from tests.device.loaders import Images, loader_of
from tests.device.standin import StandIn
from tests.helpers.programs import run

SCRIPT = """
import atexit
import torch
from tests.device.loaders import Images
from tests.device.standin import StandIn
from shmloader import DataLoader
from shmloader.device import way

if __name__ == "__main__":
    backend = StandIn(when_asked=lambda backend: None)
    way.backend_for = lambda device: backend
    atexit.register(lambda: print(len(backend.registered) > 0, backend.unregistered, flush=True))
    loader = DataLoader(Images(), 2, num_workers=2, device="cuda", persistent_workers=True)
    batches = iter(loader)
    next(batches)
"""


def never(backend):
    """No copy is done by itself."""


def after(looks):
    """Copies that are done after so many looks."""
    left = [looks]

    def when_asked(backend):
        left[0] -= 1
        if left[0] < 0:
            backend.finish()

    return when_asked


@pytest.mark.parametrize("end", ["close", "del", "break", "exhaust"])
def test_every_end_waits_for_copies_and_unregisters(monkeypatch, end):
    """In this order, whichever way the iterator ends."""
    backend = StandIn(when_asked=after(30))
    loader = loader_of(monkeypatch, backend, Images(8))
    iterator = iter(loader)
    next(iterator)
    if end == "close":
        loader.close()
    elif end == "exhaust":
        list(iterator)
    del iterator
    gc.collect()
    assert {} == backend.registered
    assert [] == backend.faults
    assert sorted(backend.ever_registered) == sorted(backend.unregistered)
    loader.close()


def test_a_close_on_another_thread(monkeypatch):
    """While next() waits for a batch: the copies in flight end first."""
    backend = StandIn(when_asked=after(5))
    loader = loader_of(monkeypatch, backend, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    closer = threading.Thread(target=loader.close)
    closer.start()
    with pytest.raises(RuntimeError, match="closed"):
        while True:
            next(iterator)
    closer.join()
    assert {} == backend.registered
    assert [] == backend.faults


def test_a_forked_child_unregisters_nothing(monkeypatch, children_are_forgotten):
    """It may drop, close and exit; the parent's copies and registrations go on."""
    backend = StandIn()
    loader = loader_of(monkeypatch, backend, persistent_workers=True)
    iterator = iter(loader)
    found = [next(iterator)]
    backend.when_asked = never
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            loader.close()
            del iterator
            gc.collect()
            status = 0 if not backend.unregistered and backend.registered else 2
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    backend.when_asked = StandIn.finish
    found += list(iterator)
    assert list(range(0, 24, 2)) == [int(labels[0]) for _, labels in found]
    assert [] == backend.unregistered
    loader.close()
    assert {} == backend.registered
    assert [] == backend.faults


def test_a_child_has_a_loader_of_its_own(monkeypatch, children_are_forgotten):
    """With its own registrations; those of the parent are as they were."""
    backend = StandIn()
    loader = loader_of(monkeypatch, backend, Images(8))
    iterator = iter(loader)
    next(iterator)
    before = dict(backend.registered)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            backend.registered.clear()
            torch.set_num_threads(1)  # the stand-in copies by torch, whose threads are not here
            batches = list(loader)
            backend.finish()
            found = [int(labels[0]) for _, labels in batches]
            status = 0 if found == [0, 2, 4, 6] and not backend.faults else 2
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert before == backend.registered
    del iterator
    loader.close()


def test_the_end_of_the_interpreter_unregisters_nothing(tmp_path):
    """The process ends with copies under way; its memory goes with it, and so do its workers."""
    status, lines, errors = run(tmp_path, SCRIPT)
    assert (0, ["True []"], "") == (status, lines, errors)


def test_a_worker_that_dies_costs_no_registration(monkeypatch):
    """Its replacement goes on with the slots that the device reads."""
    backend = StandIn()
    with loader_of(monkeypatch, backend, restarts=1) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        os.kill(iterator._workers[0].pid, 9)
        with pytest.warns(UserWarning, match="another takes its place"):
            found += list(iterator)
        backend.finish()
        assert list(range(0, 24, 2)) == [int(labels[0]) for _, labels in found]
        assert all(
            bool((image == label).all())
            for x, y in found
            for image, label in zip(x, y, strict=True)
        )
    assert [] == backend.faults
