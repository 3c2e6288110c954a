"""The process that starts replacements: it dies, is stopped, cannot fork, or is cut off."""

import errno
import os
import signal
import socket
from types import SimpleNamespace

import pytest

from shmloader import DataLoader, RestartWarning
from shmloader.processes import forking, members, nursery, nursery_process, watching
from shmloader.processes.roll import Event, Roll
from tests.helpers.healing import epoch, healed, open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script
from tests.helpers.programs import wait_until


def kill_nursery(iterator):
    """Kill all of its processes at once: a stopped one forks no other."""
    mother = iterator._processes.nursery
    assert wait_until(lambda: len(mother.pids) == members.SIZE)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in mother.pids:
            os.kill(pid, number)
    assert wait_until(lambda: not mother.is_alive())


def stop_nursery(iterator):
    mother = iterator._processes.nursery
    assert wait_until(lambda: len(mother.pids) == members.SIZE)
    for pid in mother.pids:
        os.kill(pid, signal.SIGSTOP)


def test_death_of_the_nursery(tmp_path):
    """Without its processes batches come as before; the next death is an error that says why."""
    script = Script(tmp_path, "item 9")
    with open_loader(DataLoader, Mortal(script), restarts=9) as loader:
        with script.held_back():
            iterator = iter(loader)
            kill_nursery(iterator)
            first = [next(iterator).tolist() for _ in range(3)]
        with pytest.raises(RuntimeError, match=r"\[9, 10, 11\].*that starts replacements is gone"):
            next(iterator)

        assert [12, 18, 21] == [int(batch[0][0]) for batch in iterator]

    assert undisturbed(Mortal(Script(tmp_path)))[0][:3] == first


@pytest.mark.core(every=3)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_nursery_is_deaf(tmp_path, method):
    """Signals that would end any other process leave the nursery alone, whatever threads it has."""
    script = Script(tmp_path, "item 0", later=["item 23"])
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with (
        open_loader(
            DataLoader, Mortal(script), restarts=2, multiprocessing_context=method
        ) as loader,
        pytest.warns(RestartWarning) as warned,
    ):
        iterator = iter(loader)
        actual = [next(iterator).tolist()]
        mother = iterator._processes.nursery
        assert wait_until(lambda: len(mother.pids) == members.SIZE)
        before = mother.pids
        for number in numbers * 5:
            for pid in before:
                os.kill(pid, number)
        script.arm()
        actual.append(next(iterator).tolist())
        assert before == mother.pids
        actual += [batch.tolist() for batch in iterator]

    assert expected == actual
    assert 2 == len(warned)


def test_replacements_survive_the_nursery(tmp_path):
    """A replacement works on when the nursery is gone; its own death is an error then."""
    script = Script(tmp_path, "item 3", later=["item 15"])
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with open_loader(DataLoader, Mortal(script), restarts=9, prefetch_factor=1) as loader:
        iterator = iter(loader)
        with pytest.warns(RestartWarning):
            actual = [next(iterator).tolist() for _ in range(2)]
        kill_nursery(iterator)
        with script.held_back():
            script.arm()
            actual += [next(iterator).tolist() for _ in range(3)]
        with pytest.raises(RuntimeError, match="that starts replacements is gone"):
            next(iterator)

    assert expected[:5] == actual


def failing_fork(monkeypatch, folder, times, place=os, name="fork"):
    """Let that many forks of the nursery fail; by another name, only those of replacements."""
    fork, trainer = getattr(place, name), os.getpid()

    def fail_or_fork(*arguments):
        if os.getpid() != trainer and len(os.listdir(folder)) < times:
            (folder / f"{len(os.listdir(folder))}").touch()
            raise OSError(errno.EAGAIN, "no")
        return fork(*arguments)

    folder.mkdir()
    monkeypatch.setattr(place, name, fail_or_fork)
    monkeypatch.setattr(nursery_process, "_PAUSE_S", 0.0)


def test_nursery_that_cannot_fork(tmp_path, monkeypatch):
    """A fork that fails counts as a death, reported with its reason; the next one may work."""
    failing_fork(monkeypatch, tmp_path / "failed", 2, forking, "fork_into")
    script = Script(tmp_path, "item 9")
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with (
        open_loader(DataLoader, Mortal(script), restarts=3) as loader,
        pytest.warns(RestartWarning) as warned,
    ):
        assert expected == epoch(loader)

    assert 3 == len(warned)
    for warning in warned[1:]:
        assert "worker 1 could not be started (Resource temporarily unavailable)" in str(
            warning.message
        )


@pytest.mark.thorough
def test_nursery_that_can_never_fork(tmp_path, monkeypatch):
    """When failed forks used up all restarts, the error says why; no descriptor is left."""
    failing_fork(monkeypatch, tmp_path / "failed", 1000)
    with open_loader(DataLoader, Mortal(Script(tmp_path, "item 9")), restarts=30) as loader:
        iterator = iter(loader)
        descriptors = f"/proc/{iterator._processes.nursery.process.pid}/fd"
        before = len(os.listdir(descriptors))
        with pytest.warns(RestartWarning), pytest.raises(RuntimeError) as raised:
            list(iterator)

        assert str(raised.value).startswith(
            "DataLoader worker 1 could not be started (Resource temporarily unavailable) with "
            "dataset indices [9, 10, 11] in hand, and all 30 restarts of this epoch are used: "
        )
        # It was starting before, and might have had some more.
        assert len(os.listdir(descriptors)) < before + 50


def test_trainer_without_descriptors(tmp_path, monkeypatch):
    """If an order cannot be written, the replacement could not be started."""
    make, failures = os.memfd_create, [errno.EMFILE]

    def fail_or_make(name, flags):
        if failures and name == "shmloader-progress":
            raise OSError(failures.pop(), "no")
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", fail_or_make)
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with (
        open_loader(DataLoader, Mortal(Script(tmp_path, "item 9")), restarts=2) as loader,
        pytest.warns(RestartWarning) as warned,
    ):
        assert expected == epoch(loader)

    assert "could not be started (Too many open files)" in str(warned[1].message)


@pytest.mark.thorough
def test_nursery_that_is_stopped(tmp_path, monkeypatch):
    """With a timeout, a nursery that does nothing leads to torch's error, and nothing is left."""
    monkeypatch.setattr(nursery, "_PATIENCE_S", 0.5)
    with open_loader(
        DataLoader, Mortal(Script(tmp_path, "item 3")), restarts=9, timeout=1
    ) as loader:
        iterator = iter(loader)
        stop_nursery(iterator)
        with pytest.warns(RestartWarning), pytest.raises(RuntimeError, match="timed out"):
            next(iterator), next(iterator)


class SilentProcess:
    """A nursery that reads no order, with its endpoint."""

    ident = None

    def __init__(self, args, **_):
        self.args = args

    def start(self):
        self.line, self.roll = self.args[4].dup(), self.args[6]

    def is_alive(self):
        return False


def silent_nursery():
    """Make the trainer's side of a nursery whose part the test plays."""
    context = SimpleNamespace(get_start_method=lambda: "fork", Process=SilentProcess)
    parent = SimpleNamespace(pid=os.getpid(), started=None)
    mother = nursery.Nursery(context, SimpleNamespace(parent=parent, signal_mask=set()), print)
    mother.start()
    return mother


def test_claim_behind_an_order_that_nobody_read():
    """A replacement that claims while the nursery dies is known, even if an order stays unread."""
    mother = silent_nursery()
    first, second = (mother.replacement(worker_id, None) for worker_id in range(2))
    first.start()
    line = mother.process.line
    os.close(*socket.recv_fds(line, nursery_process.ORDER.size, 1)[1])
    second.start()
    mother.process.roll.add(Event.CLAIMED, 0, os.getpid())
    line.send(nursery_process.NEWS)
    line.close()

    assert [True, False] == [first.is_alive(), second.is_alive()]
    assert (True, os.getpid()) == (mother.is_lost, first.ident)
    assert mother.close()


def test_trainer_that_ends_with_news_unread():
    """A connection reset ends the nursery's work too, without an error."""
    trainers_end, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.send(nursery_process.NEWS)
    trainer = os.getpid(), watching.start_time(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            nursery_process.run(trainer, None, print, set(), line, trainers_end, Roll())
            os._exit(0)
        finally:
            os._exit(1)
    trainers_end.close()
    line.close()

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_replacement_that_stops_at_birth(tmp_path, monkeypatch):
    """A replacement that never reports is known from the nursery, and ended by the timeout."""
    be_worker = nursery_process._Server._be_worker

    def stop_once(*arguments):
        if not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        be_worker(*arguments)

    monkeypatch.setattr(nursery_process._Server, "_be_worker", stop_once)
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    dataset = Mortal(Script(tmp_path, "item 9"))

    assert ([expected], 2, 2) == healed(dataset, timeout=1)
