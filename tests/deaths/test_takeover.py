"""The nursery's processes die one after the other, at any step, and nothing changes."""

import os
import random
import signal
import time
from types import SimpleNamespace

import pytest

from shmloader import DataLoader, RestartWarning
from shmloader.processes import forking, members, nursery, nursery_process, watching
from shmloader.processes.roll import Event, Roll
from tests.deaths.test_deaths import START_METHODS
from tests.helpers.healing import healed, open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script
from tests.helpers.programs import wait_until

ROLES = ["oldest", "middle", "active"]


def events(mother):
    return mother._roll.read(0)


def find_roles(mother):
    """Tell the oldest process, the next one and the active one apart; None unless all are there."""
    active = [record.pid for record in events(mother) if record.event == Event.ACTIVE][-1:]
    others = [pid for pid in mother.pids if pid not in active]
    if len(mother.pids) != members.SIZE or len(others) != members.SIZE - 1:
        return None
    return dict(zip(ROLES, [*others, *active], strict=True))


def pids_by_role(mother):
    assert wait_until(lambda: find_roles(mother) is not None)
    return find_roles(mother)


def kill_one(mother, role):
    """Kill one of them, and wait until there are as many again."""
    pid = pids_by_role(mother)[role]
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: pid not in mother.pids)
    assert pid not in pids_by_role(mother).values()
    assert not mother.is_lost


def claims(mother, number):
    """List the processes that claimed an order, the worker first."""
    records = [each for each in events(mother) if each.event == Event.CLAIMED]
    return list(dict.fromkeys(each.pid for each in records if each.number == number))


# The roll


def test_first_claim_is_the_worker():
    """Of the processes that claim an order, the first one gets it, as often as it asks."""
    roll = Roll()
    roll.add(Event.CLAIMED, 3, os.getppid())

    assert roll.claim(4, 0)
    assert roll.claim(4, 0)
    assert not roll.claim(3, 0)
    assert roll.claim(3, roll.end)
    roll.add(Event.FAILED, 5, code=11)
    assert not roll.claim(5, 0)
    roll.close()
    assert [] == roll.read(0)


def test_a_pid_that_is_used_again_is_another_process(monkeypatch):
    """A claim of a dead process does not count for the next one with its pid."""
    roll = Roll()
    monkeypatch.setattr("shmloader.processes.watching.start_time", lambda pid: "17")
    roll.add(Event.CLAIMED, 3, os.getpid())
    monkeypatch.undo()

    assert not roll.claim(3, 0)


# Deaths


@pytest.mark.core(every=6)
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize(
    "roles", [ROLES, ROLES[:1] * 3, ROLES[1:2] * 3, ROLES[2:] * 3], ids="-".join
)
def test_one_after_the_other(tmp_path, method, roles):
    """However many die, one at a time, a worker that dies next is replaced."""
    script = Script(tmp_path, "item 9", later=["item 23"])
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    options = {"restarts": 2, "multiprocessing_context": method, "prefetch_factor": 1}
    with (
        open_loader(DataLoader, Mortal(script), **options) as loader,
        pytest.warns(RestartWarning) as warned,
    ):
        with script.held_back():
            iterator = iter(loader)
            actual = [next(iterator).tolist()]
            for role in roles:
                kill_one(iterator._processes.nursery, role)
        actual += [next(iterator).tolist() for _ in range(4)]
        for role in roles:
            kill_one(iterator._processes.nursery, role)
        script.arm()
        actual += [batch.tolist() for batch in iterator]
        restarts = loader.stats().restarts

    assert expected == actual
    assert (2, 2) == (restarts, len(warned))


@pytest.mark.parametrize("role", ROLES)
def test_a_death_without_descriptors_for_processes(tmp_path, monkeypatch, role):
    """On a kernel without pidfds the other process looks now and then."""
    monkeypatch.delattr(os, "pidfd_open")
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with open_loader(DataLoader, Mortal(Script(tmp_path)), restarts=1) as loader:
        iterator = iter(loader)
        kill_one(iterator._processes.nursery, role)
        kill_one(iterator._processes.nursery, role)

        assert expected == [batch.tolist() for batch in iterator]


def test_the_standby_adopts_replacements(tmp_path):
    """How a replacement ended is known even if its parent died before it."""
    script = Script(tmp_path, "item 3", later=["item 22"])
    with open_loader(DataLoader, Mortal(script), restarts=2, prefetch_factor=1) as loader:
        iterator = iter(loader)
        with pytest.warns(RestartWarning):
            next(iterator), next(iterator)
        kill_one(iterator._processes.nursery, "active")
        script.arm()
        with pytest.warns(RestartWarning, match="was killed by SIGKILL"):
            list(iterator)


def test_a_nursery_that_cannot_fork_serves_alone(tmp_path, monkeypatch):
    """While no other process can be forked, orders are obeyed; later there are all again."""
    fork, trainer, folder = os.fork, os.getpid(), tmp_path / "allowed"

    def fail_or_fork():
        if os.getpid() != trainer and not folder.exists():
            raise BlockingIOError("no")
        return fork()

    monkeypatch.setattr(os, "fork", fail_or_fork)
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with open_loader(DataLoader, Mortal(Script(tmp_path, "item 9")), restarts=9) as loader:
        iterator = iter(loader)
        mother = iterator._processes.nursery
        assert wait_until(lambda: mother.pids and mother.turn > 0)
        assert 1 == len(mother.pids)
        folder.touch()
        actual = [next(iterator).tolist()]
        kill_one(mother, "active")
        with pytest.warns(RestartWarning):
            actual += [batch.tolist() for batch in iterator]

    assert expected == actual


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
    start = nursery_process._Server._start
    monkeypatch.setattr(nursery_process._Server, "_start", lambda *rest: (act(), start(*rest)))


def after_the_fork(monkeypatch, act):
    fork_into = forking.fork_into
    monkeypatch.setattr(forking, "fork_into", lambda *rest: (fork_into(*rest), act())[0])


def after_the_claim(monkeypatch, act):
    note = nursery_process._Server._note

    def note_and_act(server, event, *rest, **more):
        note(server, event, *rest, **more)
        if event == Event.CLAIMED:
            act()

    monkeypatch.setattr(nursery_process._Server, "_note", note_and_act)


@pytest.mark.parametrize("moment", [before_the_fork, after_the_fork, after_the_claim])
def test_death_with_an_order_in_hand(tmp_path, monkeypatch, moment):
    """The nursery that takes an order dies: one worker is started, and one restart is used."""
    moment(monkeypatch, once(tmp_path, die))
    (expected,) = undisturbed(Mortal(Script(tmp_path)))

    assert ([expected], 1, 1) == healed(Mortal(Script(tmp_path, "item 9")))
    assert (tmp_path / "acted").exists()


def test_newborn_that_dies_before_it_claims(tmp_path, monkeypatch):
    """Its parent claims for it, so that its death counts as a worker's."""
    be_worker, act = nursery_process._Server._be_worker, once(tmp_path, die)
    monkeypatch.setattr(
        nursery_process._Server, "_be_worker", lambda *rest: (act(), be_worker(*rest))
    )
    (expected,) = undisturbed(Mortal(Script(tmp_path)))

    assert ([expected], 2, 2) == healed(Mortal(Script(tmp_path, "item 9")))


def test_two_newborns_for_one_desk(tmp_path, monkeypatch):
    """A newborn that claims too late ends, and was nowhere near the desk."""
    be_worker, act = nursery_process._Server._be_worker, once(tmp_path / "newborn", stop)
    (tmp_path / "newborn").mkdir()

    def note_stop_and_be(*rest):
        (tmp_path / f"born {os.getpid()}").touch()
        act()
        be_worker(*rest)

    monkeypatch.setattr(nursery_process._Server, "_be_worker", note_stop_and_be)
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    script = Script(tmp_path, "item 0")
    with open_loader(DataLoader, Mortal(script), restarts=9, prefetch_factor=1) as loader:

        def wait_and_die():
            assert wait_until(lambda: (tmp_path / "newborn" / "acted").exists())
            die()

        after_the_fork(monkeypatch, once(tmp_path, wait_and_die))
        iterator = iter(loader)
        with pytest.warns(RestartWarning):
            actual = [next(iterator).tolist() for _ in range(3)]
        mother = iterator._processes.nursery
        (worker,) = claims(mother, 0)
        born = {int(path.name.split()[1]) for path in tmp_path.glob("born *")}
        (late,) = born - {worker}
        os.kill(late, signal.SIGCONT)
        assert wait_until(lambda: not os.path.exists(f"/proc/{late}"))

        assert [worker, late] == claims(mother, 0)
        assert worker == iterator._workers[0].pid
        actual += [batch.tolist() for batch in iterator]
        assert 1 == loader.stats().restarts

    assert expected == actual


def test_order_that_comes_twice(tmp_path, monkeypatch):
    """The process that has obeyed an order does not obey it again."""
    order = nursery.Nursery.order
    monkeypatch.setattr(nursery.Nursery, "order", lambda *rest: order(*rest) and order(*rest))
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with open_loader(DataLoader, Mortal(Script(tmp_path, "item 9")), restarts=9) as loader:
        iterator = iter(loader)
        with pytest.warns(RestartWarning):
            actual = [next(iterator).tolist() for _ in range(5)]
        assert 1 == len(claims(iterator._processes.nursery, 0))
        actual += [batch.tolist() for batch in iterator]

    assert expected == actual


# The end


@pytest.mark.core(every=3)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_end_with_one_of_them_hit(tmp_path, monkeypatch, role, number):
    """One is killed or stopped when the loader closes: both end, and all replacements are known."""
    terminate, close = nursery.Nursery.terminate, nursery.Nursery.close

    def hit_and_terminate(mother):
        while hit:
            os.kill(hit.pop(), number)
        terminate(mother)

    def close_and_note(mother):
        closed.append(close(mother))
        return closed[-1]

    hit, closed = [], []
    monkeypatch.setattr(nursery.Nursery, "terminate", hit_and_terminate)
    monkeypatch.setattr(nursery.Nursery, "close", close_and_note)
    script = Script(tmp_path, "item 3")
    with open_loader(DataLoader, Mortal(script), restarts=9, prefetch_factor=1) as loader:
        iterator = iter(loader)
        with pytest.warns(RestartWarning):
            next(iterator), next(iterator)
        mother = iterator._processes.nursery
        hit.append(pids_by_role(mother)[role])
        replaced = iterator._workers[1].pid, watching.start_time(iterator._workers[1].pid)
        iterator._shutdown_workers()

        assert not watching.is_running(*replaced)
        assert not mother.is_alive()
        assert [True] == closed


def test_newborns_that_die_at_once_are_not_forked_in_haste(monkeypatch):
    """After a fork a moment ago the survivor serves alone for a while."""
    forked, ended = [], []
    monkeypatch.setattr(forking, "fork", lambda: forked.append(1) or os.getppid())
    monkeypatch.setattr("shmloader.processes.watching.Watch.has_ended", property(lambda _: ended))
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    these = members.Members(Roll())
    these.complete()
    assert (1, False) == (len(forked), these.is_active)
    ended.append(True)
    assert these.look()
    these.complete()
    assert (1, True) == (len(forked), these.is_active)
    clock.now += these.patience_s
    ended.clear()
    these.complete()
    assert (2, False) == (len(forked), these.is_active)
    these.leave()


# The storm


class Slow(Mortal):
    """Samples that take long enough for several kills in an epoch."""

    def __getitem__(self, index):
        time.sleep(0.02)
        return super().__getitem__(index)


@pytest.mark.thorough
@pytest.mark.parametrize("method", START_METHODS[:1])
def test_storm_that_spares_no_child(tmp_path, method, seeded):
    """Workers and nurseries are killed one at a time, 200 ms apart: the same bits as torch."""
    dataset, chance = Slow(Script(tmp_path), count=300), random.Random(seeded)
    (expected,) = undisturbed(dataset)
    options = {"restarts": 1000, "multiprocessing_context": method}
    actual, killed, due = [], {"worker": 0, **dict.fromkeys(ROLES, 0)}, time.monotonic() + 0.2
    with (
        pytest.warns(RestartWarning) as warned,
        open_loader(DataLoader, dataset, **options) as loader,
    ):
        iterator = iter(loader)
        for batch in iterator:
            actual.append(batch.tolist())
            if time.monotonic() >= due:
                due = time.monotonic() + 0.2
                whom = min(killed, key=lambda each: (killed[each], chance.random()))
                mother = iterator._processes.nursery
                pid = (
                    chance.choice(iterator._workers).pid
                    if whom == "worker"
                    else pids_by_role(mother)[whom]
                )
                os.kill(pid, signal.SIGKILL)
                killed[whom] += 1
        restarts = loader.stats().restarts

    assert expected == actual
    assert min(killed.values()) >= 2, killed
    assert killed["worker"] - 1 <= restarts == len(warned) <= killed["worker"]
