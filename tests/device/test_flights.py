"""Copies of a batch to a device: an interrupt anywhere, errors at their turns."""

import contextlib
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from shmloader.device.copies import Copies
from shmloader.device.walk import moved
from tests.device.loaders import Images, loader_of
from tests.device.standin import Never, StandIn
from tests.helpers.interrupts import PACKAGE, Interrupt, Interrupter

FILES = (f"{PACKAGE}/device/copies.py", f"{PACKAGE}/device/blocks.py")


class Lent:
    """A batch in a slot of its own, from which nothing may be copied behind its end."""

    def __init__(self, number, in_place):
        self.leaves = [torch.full((count,), number) for count in (4096, 2)]
        self.in_place = in_place
        self.has_ended = False

    def decode(self, mover):
        assert not self.has_ended, "decoded behind its end"
        return moved(self.leaves, mover)

    def end(self):
        self.has_ended = True


class Recording:
    """Copies that are done when they begin, but noted."""

    def __init__(self):
        self.begun = []

    def begin_copy(self, to, source):
        self.begun.append(to.copy_(source))


def handed_out(copies, pending):
    """Hand a batch out, and return it."""
    copies.hand_out(pending.batch, pending)
    return pending.batch


@pytest.mark.parametrize("in_place", [True, False])
def test_an_interrupt_at_any_line_of_a_start(in_place):
    """Until there is a flight the slot is lent, and the batch can be started again."""
    interrupts, was_interrupted = Interrupter(folders=FILES), True
    while was_interrupted:
        backend = StandIn(Recording())
        copies = Copies(backend, Counter())
        pending = SimpleNamespace(batch=Lent(7, in_place))
        lent = pending.batch
        with contextlib.suppress(Interrupt), interrupts:
            copies.start(pending)
            was_interrupted = False
        if pending.batch is lent:
            assert not lent.has_ended
            copies.start(pending)
        assert all(bool((leaf == 7).all()) for leaf in handed_out(copies, pending))
        assert in_place == bool(backend.driver.begun)
        assert [] == backend.faults
    assert lent.has_ended
    assert interrupts.target > 31


def test_an_interrupt_at_any_line_of_a_hand_over():
    """The batch is there, or can be had again."""
    interrupts, was_interrupted = Interrupter(folders=FILES), True
    while was_interrupted:
        copies = Copies(StandIn(Recording()), Counter())
        pending = SimpleNamespace(batch=Lent(7, True))
        copies.start(pending)
        flight = pending.batch
        with contextlib.suppress(Interrupt), interrupts:
            copies.hand_out(flight, pending)
            was_interrupted = False
        batch = handed_out(copies, pending) if pending.batch is flight else pending.batch
        assert all(bool((leaf == 7).all()) for leaf in batch)
    assert interrupts.target > 5


def test_an_error_of_a_copy_is_raised_when_the_batch_is_handed_out():
    """Its slot is free then."""
    backend = StandIn(Recording())
    backend.raises_at = 1
    copies, pending = Copies(backend, Counter()), SimpleNamespace(batch=Lent(7, True))
    lent = pending.batch
    copies.start(pending)
    with pytest.raises(Never, match="no memory on the device"):
        handed_out(copies, pending)
    assert lent.has_ended


@pytest.mark.thorough
@pytest.mark.parametrize("call", [1, 4, 5])
def test_interrupted_copies_lose_at_most_the_batch_in_hand(gpu, backend, monkeypatch, call):
    """Ctrl-C in a copy: the loop goes on with the next batches, in order."""
    real = backend.copy

    def interrupted(to, source):
        if backend.calls == call - 1:
            backend.calls += 1
            raise KeyboardInterrupt
        real(to, source)

    monkeypatch.setattr(backend, "copy", interrupted)
    found = []
    with loader_of(Images(16)) as loader:
        iterator = iter(loader)
        for _ in range(9):
            try:
                found += [next(iterator)]
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
        del iterator
        gpu.driver.finish()
        labels = [batch[1].tolist() for batch in found]
        images = [batch[0][:, 5, 5].tolist() for batch in found]
    assert labels == images == sorted(labels)
    assert len(labels) >= 7
