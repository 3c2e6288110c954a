"""The parts of an orderly end, one by one: which process ends what at exit; late interrupts."""

import multiprocessing.process
import os

import pytest

from shmloader.processes import ending


class Owner:
    """
    An iterator as the exit sees it.

    Args:
        interrupted: If True, Ctrl-C comes while it stops watching its workers.
    """

    def __init__(self, *workers, owner_pid=None, interrupted=False):
        self.owner_pid = os.getpid() if owner_pid is None else owner_pid
        self.is_watching = True
        self._workers = workers
        self._interrupted = interrupted

    def processes(self):
        return list(self._workers)

    def unwatch(self):
        self.is_watching = False
        if self._interrupted:
            raise KeyboardInterrupt


class Worker:
    """A process that ends when it is told to."""

    def __init__(self):
        self.is_running = True

    def is_alive(self):
        return self.is_running

    def terminate(self):
        self.is_running = False

    def join(self, timeout):
        """It has ended already."""


class Finalizers:
    """Stands for multiprocessing's list of calls at the end."""

    def __init__(self):
        self.callbacks = []

    def __call__(self, owner, callback, exitpriority):
        self.callbacks.append(callback)


@pytest.fixture
def at_exit(monkeypatch):
    """Returns an exit of the tests' own, and the calls that it asked multiprocessing for."""
    finalizers = Finalizers()
    monkeypatch.setattr(ending, "Finalize", finalizers)
    return ending._Exit(), finalizers.callbacks


def test_living_owners_are_ended(at_exit):
    """At exit the workers of all live iterators end, after their watch has stopped."""
    exit_, callbacks = at_exit
    owners = [Owner(Worker(), Worker()), Owner(Worker()), Owner(Worker())]
    for owner in owners:
        exit_.add(owner)
    dropped = owners.pop()
    forgotten = dropped.processes()
    del dropped, owner
    for callback in callbacks:
        callback()

    assert 1 == len(callbacks)
    assert [False, False] == [owner.is_watching for owner in owners]
    assert not any(worker.is_running for owner in owners for worker in owner.processes())
    assert all(worker.is_running for worker in forgotten)
    assert exit_.has_begun


def test_another_processes_workers_are_left_alone(at_exit):
    """A forked child that ends does not end the workers of its parent."""
    exit_, _ = at_exit
    parents = Owner(Worker(), owner_pid=os.getpid() + 1)
    exit_.add(parents)
    exit_._begin()

    assert (True, True) == (parents.is_watching, parents.processes()[0].is_running)


def test_a_child_asks_for_an_exit_of_its_own(at_exit, monkeypatch):
    """The first iterator of each process has the exit called there, later ones do not."""
    exit_, callbacks = at_exit
    owners = [Owner() for _ in range(3)]
    exit_.add(owners[0])
    exit_.add(owners[1])
    monkeypatch.setattr(ending.os, "getpid", lambda: -1)
    exit_.add(owners[2])

    assert 2 == len(callbacks)


def test_interrupt_of_the_exit_is_dropped(at_exit):
    """Ctrl-C during the exit raises nothing: the process is already ending."""
    exit_, callbacks = at_exit
    owner = Owner(Worker(), interrupted=True)
    exit_.add(owner)
    callbacks[0]()

    assert not owner.is_watching


def test_a_forked_child_disowns_its_parents_workers(at_exit, monkeypatch):
    """multiprocessing does not wait in a child for its parent's workers, wrapped or not."""
    exit_, _ = at_exit
    plain, inner, stranger = Worker(), Worker(), Worker()
    wrapped = Worker()
    wrapped.process = inner
    owner = Owner(plain, wrapped)
    monkeypatch.setattr(multiprocessing.process, "_children", {plain, inner, stranger})
    exit_.add(owner)
    exit_.disown()

    assert {stranger} == multiprocessing.process._children


def test_a_late_interrupt_comes_when_its_owner_is_gone():
    """An interrupt held back during an object's end is raised where the object is dropped."""
    later = [ending.InterruptLater()]
    with pytest.raises(KeyboardInterrupt):
        del later[0]
        for _ in range(1000):
            os.getpid()
