"""
The process that starts replacements: it dies at any line, is stopped, or cannot fork.

What it has in common with a server of forkserver is in start/test_deaths_of_servers.
"""

import contextlib
import errno
import os
import re
import signal
import types
import warnings
from pathlib import Path

import pytest

from shmloader import DataLoader, RestartWarning
from shmloader.processes import forking, newborn, nursery, starting, watching
from shmloader.processes import mother as mother_of
from shmloader.processes.birth import Birth, Event
from shmloader.processes.channel import Channel
from shmloader.processes.forking import Forks
from shmloader.processes.newborn import Newborn
from shmloader.processes.nursery import Nursery
from tests.helpers.copies import Child
from tests.helpers.healing import epoch, healed, open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script
from tests.helpers.programs import wait_until
from tests.helpers.warned import recorded

ANOTHER = "the process that starts replacements of DataLoader workers died"


def kill_nursery(iterator):
    mother = iterator._running.processes.mother
    mother.kill()
    assert wait_until(lambda: not mother.is_alive())


def started(mother):
    """Wait until a nursery serves; returns its pid."""
    name = Path(f"/proc/{mother.process.pid}/comm")
    assert wait_until(lambda: name.read_text() == "shm_nursery\n")
    return mother.process.pid


# Deaths


@pytest.mark.thorough
def test_death_of_the_nursery(tmp_path):
    """The next death of a worker is healed by another one, and a warning says so once."""
    script = Script(tmp_path, "item 9", later=["item 23"])
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    options = {"restarts": 2, "prefetch_factor": 1}
    with open_loader(DataLoader, Mortal(script), **options) as loader, recorded() as warned:
        with script.held_back():
            iterator = iter(loader)
            kill_nursery(iterator)
        actual = [next(iterator).tolist() for _ in range(5)]
        kill_nursery(iterator)
        script.arm()
        actual += [batch.tolist() for batch in iterator]
        restarts, mother = loader.stats().restarts, iterator._running.processes.mother

    assert expected == actual
    assert (2, 3) == (restarts, mother.count)
    texts = [str(warning.message) for warning in warned]
    assert [False, True, False] == [text.startswith(ANOTHER) for text in texts]


class Changing(Mortal):
    """Each sample has a number that the trainer may change."""

    number = 1

    def __getitem__(self, index):
        super().__getitem__(index)
        return self.number


@pytest.mark.thorough
@pytest.mark.parametrize(("kills", "number"), [(False, 1), (True, 2)])
def test_dataset_of_a_replacement(tmp_path, kills, number):
    """It is that of iter(), and the trainer's of now only behind a death of the nursery."""
    script = Script(tmp_path, "item 3")
    dataset = Changing(script, count=12)
    with (
        open_loader(DataLoader, dataset, restarts=1, num_workers=1, prefetch_factor=1) as loader,
        recorded() as warned,
    ):
        with script.held_back():
            iterator = iter(loader)
            dataset.number = 2
            if kills:
                kill_nursery(iterator)
        numbers = [set(batch.tolist()) for batch in iterator]

    assert [{1}, {number}, {number}, {number}] == numbers
    said = [f"{warning.message}" for warning in warned if ANOTHER in str(warning.message)]
    assert ["they begin with the dataset of this process" in each for each in said] == [
        True
    ] * kills


def test_nursery_is_reaped_when_its_channel_is_closed_already(tmp_path):
    """An iterator in a cycle reaps it, though the collector may close the channel first."""
    loader = open_loader(DataLoader, Mortal(Script(tmp_path)), restarts=1)
    iterator = iter(loader)
    mother = iterator._running.processes.mother
    mother._channel.close()
    del iterator

    with pytest.raises(ChildProcessError):
        os.waitpid(mother.process.pid, os.WNOHANG)


@pytest.mark.thorough
def test_slots_that_deaths_of_the_nursery_keep(tmp_path):
    """Of what is held when one is started, no more waits for its workers than can be spared."""
    (expected,) = undisturbed(Mortal(Script(tmp_path), count=60), num_workers=3)
    points = [f"item {number}" for number in range(6, 60, 4)]
    with (
        open_loader(
            DataLoader,
            Mortal(Script(tmp_path, *points), count=60),
            restarts=99,
            num_workers=3,
            slots=9,
        ) as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        iterator, held, waited = iter(loader), [], []
        for batch in iterator:
            held.append(batch)
            del held[:-4]
            kill_nursery(iterator)
            waited.append(loader.stats().slots["forked"])
            expected.remove(batch.tolist())
        reserve = iterator._transport.budget.reserve
        count = iterator._running.processes.mother.count

    assert [] == expected
    assert count > 5
    # Those of the nurseries from which the three workers are.
    assert 0 < max(waited) <= 3 * (9 - reserve)


# Nothing left to fork with


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
    monkeypatch.setattr(forking, "_PAUSE_S", 0.0)


@pytest.mark.thorough
def test_nursery_that_cannot_fork(tmp_path, monkeypatch):
    """A fork that fails counts as a death, reported with its reason; the next one may work."""
    failing_fork(monkeypatch, tmp_path / "failed", 2, forking, "fork_into")
    script = Script(tmp_path, "item 9")
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with (
        open_loader(DataLoader, Mortal(script), restarts=3) as loader,
        recorded() as warned,
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
        descriptors = f"/proc/{iterator._running.processes.mother.process.pid}/fd"
        before = len(os.listdir(descriptors))
        with pytest.warns(RestartWarning), pytest.raises(RuntimeError) as raised:
            list(iterator)

        assert str(raised.value).startswith(
            "DataLoader worker 1 could not be started (Resource temporarily unavailable) with "
            "dataset indices [9, 10, 11] in hand, and all 30 restarts of this epoch are used: "
            "RLIMIT_NPROC allows this process "
        )
        # It was starting before, and might have had some more.
        assert len(os.listdir(descriptors)) < before + 50


def lack(monkeypatch, times, place, name, number, of_what=()):
    """Let a function of the trainer fail that many times, if its first arguments are these."""
    real, failures = getattr(place, name), [number] * times

    def fail_or_call(*arguments):
        if failures and arguments[: len(of_what)] == of_what:
            raise OSError(failures.pop(), "no")
        return real(*arguments)

    monkeypatch.setattr(place, name, fail_or_call)
    return failures


# What fails when an order is written, or a nursery is started; and what an error says.
SHORTAGES = {
    "descriptors": (
        (os, "memfd_create", errno.EMFILE, ("shmloader-birth",)),
        *("Too many open files", "RLIMIT_NOFILE"),
    ),
    "processes": (
        (starting, "start", errno.EAGAIN),
        *("Resource temporarily unavailable", "RLIMIT_NPROC"),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("short", SHORTAGES)
def test_trainer_without_something_for_a_moment(tmp_path, monkeypatch, short):
    """What cannot be ordered now is ordered when there is room, for the same restart."""
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    script = Script(tmp_path, "item 9")
    with open_loader(DataLoader, Mortal(script), restarts=1) as loader, recorded() as warned:
        with script.held_back():
            iterator = iter(loader)
            kill_nursery(iterator)
            failures = lack(monkeypatch, 3, *SHORTAGES[short][0])
        actual = [batch.tolist() for batch in iterator]
        restarts = loader.stats().restarts

    assert ([], 1, 2) == (failures, restarts, len(warned))
    assert expected == actual


@pytest.mark.thorough
@pytest.mark.parametrize("short", SHORTAGES)
def test_trainer_without_something_for_ever(tmp_path, monkeypatch, short):
    """If nothing can be ordered, the replacements could not be started: an error with numbers."""
    call, text, limit = SHORTAGES[short]
    monkeypatch.setattr(newborn, "_PATIENCE_S", 0.3)
    script = Script(tmp_path, "item 9")
    with open_loader(DataLoader, Mortal(script), restarts=2) as loader, recorded() as warned:
        with script.held_back():
            iterator = iter(loader)
            kill_nursery(iterator)
            lack(monkeypatch, 10**6, *call)
        with pytest.raises(RuntimeError) as raised:
            list(iterator)

    assert f"could not be started ({text})" in str(warned[1].message)
    assert f"could not be started ({text}) with" in str(raised.value)
    numbers = rf"{limit} allows this process \d+ .*\(hard limit -?\d+\)"
    assert re.search(f"all 2 restarts of this epoch are used: {numbers}", str(raised.value))


@pytest.mark.thorough
def test_nurseries_that_die_at_once_are_not_started_in_haste(tmp_path, monkeypatch):
    """One that ends before it obeys is replaced for a while, then no worker could be started."""
    monkeypatch.setattr(newborn, "_PATIENCE_S", 1.0)
    script, trainer, times = Script(tmp_path, "item 9"), os.getpid(), []
    make = Nursery._make
    monkeypatch.setattr(Nursery, "_make", lambda mother: times.append(1) or make(mother))
    monkeypatch.setattr(Forks, "_obey", lambda _: os.getpid() == trainer or die())
    with (
        open_loader(DataLoader, Mortal(script), restarts=1) as loader,
        pytest.warns(RestartWarning),
        pytest.raises(RuntimeError, match=r"not be started .*1 restarts of this epoch are used"),
    ):
        list(loader)

    assert 2 <= len(times) <= 2 + 1.0 / mother_of._PAUSE_S


@pytest.mark.thorough
def test_start_of_a_nursery_that_an_interrupt_meets(tmp_path, monkeypatch, capfd):
    """An interrupt before there is a process: the next one has a channel that is open."""
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    start, nurseries = starting.start, []

    def interrupted(process):
        nurseries.extend([process] * (process._target is nursery.run))
        if process in nurseries and len(nurseries) == 2:
            raise KeyboardInterrupt
        start(process)

    monkeypatch.setattr(starting, "start", interrupted)
    script = Script(tmp_path, "item 9")
    with (
        open_loader(DataLoader, Mortal(script), restarts=2, prefetch_factor=1) as loader,
        recorded(),
    ):
        with script.held_back():
            iterator = iter(loader)
            kill_nursery(iterator)
        actual = []
        while not actual or actual[-1] is not None:
            with contextlib.suppress(KeyboardInterrupt):
                batch = next(iterator, None)
                actual.append(None if batch is None else batch.tolist())

    assert ([*expected, None], 3) == (actual, len(nurseries))
    assert ("", "") == capfd.readouterr()


# Stopped


def stop_nursery(iterator):
    os.kill(started(iterator._running.processes.mother), signal.SIGSTOP)


@pytest.mark.thorough
def test_nursery_that_is_stopped(tmp_path):
    """With a timeout, a nursery that does nothing is killed, and another one is started."""
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with (
        open_loader(
            DataLoader, Mortal(Script(tmp_path, "item 3")), restarts=2, timeout=3
        ) as loader,
        recorded() as warned,
    ):
        iterator = iter(loader)
        stop_nursery(iterator)
        actual = [batch.tolist() for batch in iterator]

    assert expected == actual
    said = "\n".join(str(warning.message) for warning in warned)
    assert (3, 1) == (len(warned), said.count("worker 1 was killed after it hung for timeout=3 s"))


# Between an order and its worker


def once(folder, action):
    """Make a function that acts in the first process that calls it, and in no other one."""

    def act():
        try:
            (folder / "acted").mkdir()
        except FileExistsError:
            return
        action()

    return act


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def before_the_fork(monkeypatch, act):
    obey = Forks._obey
    monkeypatch.setattr(Forks, "_obey", lambda server: (act(), obey(server))[1])


def with_the_order_in_hand(monkeypatch, act):
    fork_into = forking.fork_into
    monkeypatch.setattr(forking, "fork_into", lambda *rest: (act(), fork_into(*rest))[1])


def after_the_fork(monkeypatch, act):
    fork_into = forking.fork_into
    monkeypatch.setattr(forking, "fork_into", lambda *rest: (fork_into(*rest), act())[0])


def after_the_claim(monkeypatch, act):
    add = Birth.add

    def add_and_act(birth, event, *rest, **more):
        record = add(birth, event, *rest, **more)
        if event == Event.BORN and rest != (os.getpid(),):
            act()
        return record

    monkeypatch.setattr(Birth, "add", add_and_act)


MOMENTS = [before_the_fork, with_the_order_in_hand, after_the_fork, after_the_claim]


@pytest.mark.core(first=1)
@pytest.mark.parametrize("moment", MOMENTS)
def test_death_with_an_order_in_hand(tmp_path, monkeypatch, moment):
    """The nursery that takes an order dies: one worker is started, and one restart is used."""
    moment(monkeypatch, once(tmp_path, die))
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    epochs, restarts, _ = healed(Mortal(Script(tmp_path, "item 9")))

    assert ([expected], 1) == (epochs, restarts)
    assert (tmp_path / "acted").exists()


def note_births(monkeypatch, folder, act):
    """Have each newborn note its pid in a folder, and act before it claims."""
    be_worker = Forks._be_born

    def note_act_and_be(*rest):
        (folder / f"born {os.getpid()}").touch()
        act()
        be_worker(*rest)

    monkeypatch.setattr(Forks, "_be_born", note_act_and_be)


def born(folder):
    return {int(path.name.split()[1]) for path in folder.glob("born *")}


@pytest.mark.thorough
@pytest.mark.parametrize(("action", "options"), [(die, {}), (stop, {"timeout": 1})])
def test_newborn_that_never_claims(tmp_path, monkeypatch, action, options):
    """Its parent claims for it, so that its death, or the timeout's, counts as a worker's."""
    note_births(monkeypatch, tmp_path, once(tmp_path, action))
    (expected,) = undisturbed(Mortal(Script(tmp_path)))

    assert ([expected], 2, 2) == healed(Mortal(Script(tmp_path, "item 9")), **options)


def wait_for_a_birth_and_die(folder):
    assert wait_until(lambda: born(folder))
    die()


@pytest.mark.thorough
def test_two_newborns_for_one_desk(tmp_path, monkeypatch):
    """A newborn that claims too late ends, and was nowhere near the desk."""
    (tmp_path / "newborn").mkdir()
    note_births(monkeypatch, tmp_path, once(tmp_path / "newborn", stop))
    after_the_fork(monkeypatch, once(tmp_path, lambda: wait_for_a_birth_and_die(tmp_path)))
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    script = Script(tmp_path, "item 0")
    with open_loader(DataLoader, Mortal(script), restarts=9, prefetch_factor=1) as loader:
        iterator = iter(loader)
        with pytest.warns(RestartWarning):
            actual = [next(iterator).tolist() for _ in range(3)]
        worker = iterator._workers[0].pid
        (late,) = born(tmp_path) - {worker}
        os.kill(late, signal.SIGCONT)
        assert wait_until(lambda: not os.path.exists(f"/proc/{late}"))

        assert worker == iterator._workers[0].pid
        actual += [batch.tolist() for batch in iterator]
        assert 1 == loader.stats().restarts

    assert expected == actual


@pytest.mark.thorough
def test_newborn_that_comes_after_the_end(tmp_path, monkeypatch):
    """A process that was forked for an order of a loader that is closed by now ends at once."""
    (tmp_path / "newborn").mkdir()
    note_births(monkeypatch, tmp_path, once(tmp_path / "newborn", stop))
    after_the_fork(monkeypatch, lambda: wait_for_a_birth_and_die(tmp_path))
    monkeypatch.setattr(mother_of, "_PAUSE_S", 1000.0)
    with open_loader(DataLoader, Mortal(Script(tmp_path)), restarts=9) as loader:
        mother = iter(loader)._running.processes.mother
        late = Newborn(mother, 0, None)
        late.start()
        assert wait_until(lambda: not mother.is_alive())
        late.terminate()

        assert (errno.ECANCELED, None, False) == (late.exitcode, late.ident, late.is_alive())
    (pid,) = born(tmp_path)
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_end_of_a_trainer_with_orders_unread():
    """A nursery takes what is in the channel for orders, then its end for the end."""
    trainers_end, line = Channel.pair()
    birth = Birth.make(b"")
    birth.add(Event.FAILED, code=errno.ECANCELED)
    trainers_end.say(forking.ORDER.pack(birth.content_bytes, 1), [birth.fileno()])
    spec = types.SimpleNamespace(parent=watching.ParentWatch(os.getpid()))
    child = Child(nursery.run, spec, print, line, trainers_end)
    trainers_end.close()
    line.close()

    assert "None" == child.end()


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["nursery first", "worker first"])
def test_restarts_are_spent_on_workers_alone(tmp_path, order):
    """Each death of a worker together with the nursery costs one restart, until none is left."""
    points = [f"item {number}" for number in (3, 9, 15)]
    script = Script(tmp_path, *points)
    (expected,) = undisturbed(Mortal(Script(tmp_path)), num_workers=1)
    actual = []
    with (
        open_loader(DataLoader, Mortal(script), restarts=2, num_workers=1) as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RestartWarning)
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match="all 2 restarts of this epoch are used"):
            while True:
                kill_nursery(iterator) if order == "nursery first" else None
                actual.append(next(iterator).tolist())
                kill_nursery(iterator)
        assert 2 == loader.stats().restarts

    assert expected[: len(actual)] == actual
    assert 5 == len(actual)
