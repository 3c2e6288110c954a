"""A lease ends when the event behind its copies is done: all orders, and an interrupt anywhere."""

import itertools
import sys
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shmloader.device import copies as copies_module
from shmloader.device.copies import Copies
from shmloader.device.walk import moved
from tests.device.loaders import Images, loader_of
from tests.device.standin import Never, StandIn


class Lent:
    """A batch in a slot of its own, which must not change before its lease has ended."""

    def __init__(self, number, backend, small=1):
        self.number = number
        self.memory = torch.full((4096,), number)
        self.labels = [torch.full((2,), number) for _ in range(small)]
        self.has_ended = False
        backend.register(self.memory.data_ptr(), self.memory.nbytes)

    def decode(self, mover):
        assert not self.has_ended, "decoded behind its end"
        return moved([self.memory, *self.labels], mover)

    def end(self):
        self.has_ended = True


def registry(is_direct=True):
    return SimpleNamespace(holds=lambda lent: is_direct, release=lambda: True)


def copies_of(backend, **options):
    return Copies(backend, registry(options.pop("is_direct", True)), Counter(), ahead=2, **options)


def is_right(batch, number):
    return all(bool((leaf == number).all()) for leaf in batch)


def test_every_order_in_which_copies_end():
    """All 720, of three batches of two copies each: a lease ends behind its batch's, not before."""
    for order in itertools.permutations(range(6)):
        check_order(order)


def check_order(order):
    backend = StandIn(when_asked=lambda backend: None)
    flights = copies_of(backend)
    pending = [SimpleNamespace(batch=Lent(number, backend)) for number in range(3)]
    lent = [each.batch for each in pending]
    handed = [flights.hand_out(flights.start(each)) for each in pending]
    for count in range(7):
        flights.poll()
        done = set(order[:count])
        # A stream's event is behind all copies that were issued before it.
        expected = [done >= set(range(2 * number + 2)) for number in range(3)]
        assert expected == [each.has_ended for each in lent]
        assert 3 - sum(expected) == flights.in_flight
        if count < 6:
            backend.run(order[count])
    assert [True] * 3 == [is_right(batch, number) for number, batch in enumerate(handed)]


@given(st.data())
@settings(max_examples=25)
def test_some_schedules(data):
    """Starts, ends of copies, looks and hand-outs in any order, against the plain rule."""
    check_schedule(data)


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=1000)
def test_many_schedules(data):
    """The same, with forty times as many."""
    check_schedule(data)


def check_schedule(data):
    backend = StandIn(when_asked=lambda backend: None)
    flights = copies_of(backend, is_direct=data.draw(st.booleans()))
    begun, handed, ends = [], [], []
    for _ in range(data.draw(st.integers(1, 30))):
        move = data.draw(st.sampled_from(["start", "run", "poll", "hand out"]))
        if move == "start":
            lent = Lent(len(begun), backend, data.draw(st.integers(0, 3)))
            is_direct = flights.registry.holds(lent)
            begun.append((lent, flights.start(SimpleNamespace(batch=lent))))
            ends.append((len(backend.ops), is_direct))
        elif move == "run" and backend.waiting:
            waiting = [number for number, op in enumerate(backend.ops) if op is not None]
            backend.run(data.draw(st.sampled_from(waiting)))
        elif move == "poll":
            flights.poll()
        elif move == "hand out" and len(handed) < len(begun):
            handed.append(flights.hand_out(begun[len(handed)][1]))
        for (lent, _), (end, is_direct) in zip(begun, ends, strict=True):
            may_have_ended = not is_direct or not any(backend.ops[:end])
            assert may_have_ended or not lent.has_ended
            if lent.has_ended:
                lent.memory.fill_(-1)  # the slot's next batch
    backend.finish()
    flights.poll()
    handed += [flights.hand_out(flight) for _, flight in begun[len(handed) :]]
    assert all(lent.has_ended for lent, _ in begun)
    assert all(is_right(batch, number) for number, batch in enumerate(handed))


class Interrupted(KeyboardInterrupt):
    """An interrupt before a certain line of the copies."""


def interrupted_at(count, call):
    """Run a call, interrupted before its count-th line. Returns True if it came so far."""
    left = [count]

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith(("copies.py", "blocks.py")):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("is_direct", [True, False])
def test_an_interrupt_at_any_line_of_a_start(is_direct):
    """The batch can be started again, and nothing is let go of that an issued copy reads."""
    for count in itertools.count():
        backend = StandIn(when_asked=lambda backend: None)
        flights = copies_of(backend, is_direct=is_direct)
        pending = SimpleNamespace(batch=Lent(7, backend))
        lent = pending.batch
        was_interrupted = interrupted_at(count, partial(flights.start, pending))
        if pending.batch is lent:
            flights.poll()
            flights.start(pending)
        assert not (lent.has_ended and is_direct)
        flight = pending.batch
        flights.poll()
        assert not (lent.has_ended and is_direct)
        backend.finish()
        flights.poll()
        assert 0 == flights.in_flight
        assert is_right(flights.hand_out(flight), 7)
        if not was_interrupted:
            break
    assert count > 30


def test_an_interrupt_at_any_line_of_a_look():
    """The next look finds what is done."""
    for count in itertools.count():
        backend = StandIn(when_asked=lambda backend: None)
        flights = copies_of(backend)
        lent = [Lent(number, backend) for number in range(2)]
        for each in lent:
            flights.start(SimpleNamespace(batch=each))
        backend.run(0)
        backend.run(1)
        was_interrupted = interrupted_at(count, flights.poll)
        assert not lent[1].has_ended
        backend.finish()
        flights.poll()
        assert [True, True] == [each.has_ended for each in lent]
        assert 0 == flights.in_flight
        if not was_interrupted:
            break
    assert count > 10


def test_an_end_that_copies_do_not_reach(monkeypatch):
    """What they read stays until the process ends, and the caller is told."""
    monkeypatch.setattr(copies_module, "_LAND_S", 0.01)
    backend = StandIn(when_asked=lambda backend: None)
    flights = copies_of(backend)
    lent = Lent(1, backend)
    flights.start(SimpleNamespace(batch=lent))
    assert not flights.close()
    assert not lent.has_ended
    assert [flights] == copies_module._abandoned
    copies_module._abandoned.clear()


def test_an_error_of_the_last_batches_is_raised_at_the_end(monkeypatch):
    """Once, in place of the epoch's end: there is no batch in whose place it could come."""
    backend = StandIn(when_asked=lambda backend: None)
    loader = loader_of(monkeypatch, backend, Images(4))
    iterator = iter(loader)
    assert 2 == len([next(iterator), next(iterator)])
    backend.fails_at = 0
    with pytest.raises(Never, match="the copy failed"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    del iterator
    loader.close()
    copies_module._abandoned.clear()


def test_an_error_that_comes_late_is_raised_at_the_next_turn():
    """The batch was handed out before its copy failed."""
    backend = StandIn(when_asked=lambda backend: None)
    flights = copies_of(backend)
    first, second = (flights.start(SimpleNamespace(batch=Lent(i, backend))) for i in range(2))
    flights.hand_out(first)
    backend.fails_at = 0
    flights.poll()
    with pytest.raises(Never):
        flights.hand_out(second)


@pytest.mark.parametrize("call", [1, pytest.param(4, marks=pytest.mark.thorough), 5])
def test_interrupted_copies_lose_at_most_the_batch_in_hand(monkeypatch, call):
    """Ctrl-C in a copy: the loop goes on with the next batches, in order."""
    backend = StandIn()
    real = backend.copy

    def interrupted(to, source):
        if backend.calls == call - 1:
            backend.calls += 1
            raise KeyboardInterrupt
        real(to, source)

    monkeypatch.setattr(backend, "copy", interrupted)
    found = []
    with loader_of(monkeypatch, backend, Images(16)) as loader:
        iterator = iter(loader)
        for _ in range(9):
            try:
                found += [next(iterator)]
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
        backend.finish()
        labels = [batch[1].tolist() for batch in found]
        images = [batch[0][:, 5, 5].tolist() for batch in found]
    assert labels == images == sorted(labels)
    assert len(labels) >= 7
    assert [] == backend.faults
