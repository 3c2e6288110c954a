"""
A handler of a signal, or a finalizer, asks for the very thing that it interrupts, at any bytecode.

What it asks for comes, or is refused at once; what was interrupted is what it would have been.
"""

import functools
import itertools
import sys
from concurrent import futures

import pytest
import torch

from shmloader import DataLoader, Pool
from shmloader.pool import engine
from tests.helpers.datasets import Computed
from tests.helpers.interrupts import Interrupter
from tests.pool import functions

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="Python 3.12 crashes where a generator whose bytecodes were traced goes on in a thread",
)


class Interruption(Interrupter):
    """
    Does something once, before one of the bytecodes that the package runs in this thread.

    Attributes:
        came: False if there were fewer bytecodes.
        result: What it was, or the error.
    """

    def __init__(self, bytecode):
        super().__init__(event="opcode")
        self.target = bytecode + 1
        self.came, self.result = False, None

    def __call__(self, do, *arguments):
        self.do = functools.partial(do, *arguments)
        return self

    def act(self, frame):
        self.came = True
        try:
            self.result = self.do()
        except Exception as error:
            self.result = error


def interruptions(stride):
    """Give one at each so manieth bytecode, until one does not come any more."""
    for bytecode in itertools.count(0, stride):
        yield (interruption := Interruption(bytecode))
        if not interruption.came:
            return


def strides(few, many):
    """Return how many bytecodes lie between two interruptions, in the core and in the rest."""
    return pytest.mark.parametrize(
        "stride", [few, pytest.param(many, marks=pytest.mark.thorough)], ids=["few", "many"]
    )


# What is asked of a pool in the middle of a map, and what is said to that.
ASKED = {
    "submit": (lambda pool: pool.submit(functions.square, 3).result(20), 9),
    "map": (lambda pool: list(pool.map(functions.square, [3])), [9]),
    "wait": (lambda pool: len(futures.wait([pool.submit(len, "a")], 20).done), 1),
    "stats": (lambda pool: pool.stats().restarts, 0),
    "report": (lambda pool: type(pool.report()), str),
}
SQUARES = [0, 1, 4, 9, 16]


def squares(pool):
    return list(pool.map(functions.square, range(5)))


@strides(61, 7)
@pytest.mark.parametrize("asked", ASKED)
def test_a_handler_asks_the_pool_that_it_interrupts(monkeypatch, asked, stride):
    """With a handler of user code the main thread does not lead, and all is as it always is."""
    monkeypatch.setattr(engine, "may_be_handled", lambda: True)
    ask, answer = ASKED[asked]
    with Pool(2, "fork") as pool:
        assert SQUARES == squares(pool)
        for interruption in interruptions(stride):
            with interruption(ask, pool):
                found = squares(pool)
            assert SQUARES == found
            assert not interruption.came or answer == interruption.result


@pytest.mark.core(first=1)
@strides(997, 97)
@pytest.mark.parametrize("asked", ["submit", "map", "stats"])
def test_a_finalizer_asks_the_pool_that_its_thread_leads(monkeypatch, asked, stride):
    """It has its answer, or is told that it would wait for ever; a call that it makes is made."""
    monkeypatch.setattr(engine, "may_be_handled", bool)
    ask, answer = ASKED[asked]
    calls = []

    def finalize(pool):
        calls.append(pool.submit(functions.square, 2))
        return ask(pool)

    for interruption in interruptions(stride):
        with Pool(2, "fork") as pool:
            assert SQUARES == squares(pool)  # its workers are not forked under a trace
            with interruption(finalize, pool):
                found = squares(pool)
        assert SQUARES == found
        if interruption.came and interruption.result != answer:
            assert "interrupted" in str(interruption.result)
    assert {4} == {each.result(20) for each in calls}


@pytest.mark.core(first=1)
@strides(191, 17)
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("leads", [True, False])
def test_a_pool_is_shut_down_in_the_middle_of_a_map(monkeypatch, leads, waits, stride):
    """The map has all its results, or was not begun; the workers end."""
    monkeypatch.setattr(engine, "may_be_handled", lambda: not leads)
    for interruption in interruptions(7 * stride if leads else stride):
        pool = Pool(2, "fork")
        assert SQUARES == squares(pool)
        try:
            with interruption(pool.shutdown, waits):
                found = squares(pool)
        except RuntimeError as error:
            found = str(error)
        pool.shutdown()
        assert found in (SQUARES, "cannot schedule new futures after shutdown")
        assert None is interruption.result


def test_a_pool_is_shut_down_just_before_a_map_leads(monkeypatch):
    """The calls that were taken are made, and none is sent once the workers are gone."""
    monkeypatch.setattr(engine, "may_be_handled", bool)
    pool = Pool(2, "fork")
    assert SQUARES == squares(pool)

    class Lock:
        """The pool's, before the first use of which a handler comes."""

        def __init__(self, lock):
            self.lock = lock

        def __getattr__(self, name):
            return getattr(self.lock, name)

        def acquire(self, *arguments, **options):
            pool._engine._lead = self.lock
            pool.shutdown()
            return self.lock.acquire(*arguments, **options)

    monkeypatch.setattr(pool._engine, "_lead", Lock(pool._engine._lead))
    assert SQUARES == squares(pool)


def numbers(**options):
    return DataLoader(Computed(5000, torch.tensor), batch_size=None, num_workers=2, **options)


@pytest.mark.thorough
@strides(37, 1)
@pytest.mark.parametrize("options", [{}, {"restarts": 1}], ids=["plain", "restarts"])
def test_a_handler_asks_for_the_next_batch_within_a_next(options, stride):
    """It has it, or is refused; each batch comes once."""
    batches = iter(numbers(**options))
    found = [int(next(batches))]
    for interruption in interruptions(stride):
        with interruption(next, batches):
            found.append(int(next(batches)))
        if isinstance(interruption.result, torch.Tensor):
            found.append(int(interruption.result))
        elif interruption.came:
            assert "interrupted a next" in str(interruption.result)
    assert list(range(len(found))) == sorted(found)


@pytest.mark.thorough
@strides(199, 23)
def test_a_handler_closes_the_loader_within_a_next(stride):
    """The batch comes, or the error of a loader that was closed; its workers are gone."""
    for interruption in interruptions(stride):
        loader = numbers()
        batches = iter(loader)
        found = [int(next(batches))]
        try:
            with interruption(loader.close):
                found.append(int(next(batches)))
        except RuntimeError as error:
            assert "the loader was closed" in str(error)
        assert list(range(len(found))) == found
        assert None is interruption.result
        assert not interruption.came or not any(each.is_alive() for each in batches._workers)
        loader.close()
