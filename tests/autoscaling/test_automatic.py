"""`num_workers="auto"`: the same batches and draws, whoever comes and goes meanwhile."""

import copy
import os
import pickle
import random
import signal
import time
import warnings
from dataclasses import replace

import numpy
import pytest
import torch
import torch.utils.data

import shmloader
from shmloader import DataLoader, errors
from shmloader.advice.report import workers_lines
from shmloader.autoscaling import autoscaler, windows
from shmloader.autoscaling.controller import Controller
from shmloader.cli import main
from shmloader.interception import is_installed
from shmloader.stats import WorkersChange
from shmloader.stats.words import percent, times
from shmloader.transport.requests import ANY
from shmloader.transport.seats import Seats
from tests.helpers.datasets import Computed, DiesOnce, Iterated, Numbered, sample
from tests.simulation.squares import Squares

COUNT, BATCH, MOST = 60, 2, 5
LONGEST_S = 60


def told(index):
    """The index, and what the worker is told."""
    info = torch.utils.data.get_worker_info()
    return torch.tensor([index, info.id, info.num_workers])


def drawn(index):
    """The index and draws."""
    draws = (
        random.getrandbits(40),
        int(numpy.random.randint(1 << 40)),
        int(torch.randint(1 << 40, ())),
    )
    return torch.tensor([index, *draws])


def drawn_by_rng(index):
    """The index and a draw of the one generator that threads may draw from."""
    return torch.tensor([index, int(shmloader.rng().integers(1 << 40))])


DRAWN = Computed(COUNT, drawn)


def waited_for(index):
    """A sample that waits some milliseconds."""
    time.sleep(0.004)
    return sample(index)


WAITING = Computed(COUNT, waited_for)


@pytest.fixture
def restless(monkeypatch):
    """Between any two batches some workers may be added, or let go."""
    chance = random.Random(0)

    def decide(self, window, limits):
        return chance.randint(limits.least, limits.most)

    monkeypatch.setattr(Controller, "decide", decide)
    monkeypatch.setattr(windows, "LEAST_S", 0.0)
    monkeypatch.setattr(windows, "LEAST_BATCHES", 1)
    monkeypatch.setattr(windows, "_SETTLE_S", 0.0)
    monkeypatch.setattr(autoscaler, "_LOOK_S", 0.0)


def epochs(dataset, count=3, stop=None, **options):
    """Iterate some epochs, the second one up to a batch; return the batches, and the loader's."""
    given = {"batch_size": BATCH, "shuffle": True, **options}
    given["generator"] = torch.Generator().manual_seed(7)
    taken = []
    with warnings.catch_warnings(action="ignore"), DataLoader(dataset, **given) as loader:
        for epoch in range(count):
            taken.append([])
            for made in loader:
                taken[-1].append(made.tolist())
                if epoch == 1 and len(taken[-1]) == stop:
                    break
        stats = loader.stats()
    return taken, stats


def fixed(dataset, **options):
    """The epochs of a fixed number of workers: the most that there may be, which draws as much."""
    return epochs(dataset, num_workers=MOST, seed_by="batch", **options)[0]


OPTIONS = [
    {},
    {"persistent_workers": True},
    {"persistent_workers": True, "prefetch_factor": 1},
    {"prefetch_factor": 5},
    {"restarts": 3},
    {"resumable": True, "persistent_workers": True},
    {"worker_bytes": 1 << 20},
    {"slots": 2},
]


@pytest.mark.thorough
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_and_draws_of_a_fixed_number(options, restless):
    """Whatever the controller does, in epochs that are broken off too."""
    expected = fixed(DRAWN, stop=7, **options)
    found, stats = epochs(
        DRAWN, stop=7, num_workers="auto", max_workers=MOST, min_workers=1, **options
    )
    assert expected == found
    assert len(stats.changes) > 3


@pytest.mark.thorough
def test_with_threads(restless):
    """Threads in workers draw from `rng()`, which depends on the sample alone."""
    given = {"dataset": Computed(COUNT, drawn_by_rng), "count": 2, "fetch_threads": 2}
    found, _ = epochs(num_workers="auto", max_workers=MOST, **given)
    assert fixed(**given) == found


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "persistent"), [("spawn", True), ("forkserver", False)])
def test_by_each_start_method(method, persistent, restless):
    """Workers that start late are asked late, and delay nobody."""
    options = {"persistent_workers": persistent}
    expected = fixed(DRAWN, **options)[:2]
    options["multiprocessing_context"] = method
    found, _ = epochs(DRAWN, 2, num_workers="auto", max_workers=3, **options)
    assert expected == found


@pytest.mark.thorough
def test_deaths_change_no_batch(restless, tmp_path):
    """A worker that dies is replaced, also while others come and go."""
    dataset = DiesOnce(Numbered(COUNT), tmp_path / "died")
    found, stats = epochs(dataset, 2, num_workers="auto", max_workers=MOST, restarts=2)
    assert fixed(Numbered(COUNT))[:2] == found
    assert 1 == stats.restarts


@pytest.mark.thorough
def test_a_run_that_is_resumed(restless):
    """It goes on with the same batches, and with as many workers as were right."""
    expected = fixed(DRAWN, shuffle=False)[0]
    generator = torch.Generator().manual_seed(7)
    options = {"batch_size": BATCH, "num_workers": "auto", "max_workers": MOST}
    with DataLoader(DRAWN, generator=generator, **options) as loader:
        batches = iter(loader)
        found = [next(batches).tolist() for _ in range(8)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
    with DataLoader(DRAWN, **options) as loader:
        loader.load_state_dict(state)
        assert state["live_workers"] == loader._service.pool.learnt_workers
        found += [made.tolist() for made in loader]
    assert expected == found


@pytest.mark.thorough
def test_what_workers_are_told(restless, monkeypatch):
    """The id is the seat, and the number the most that there may be."""
    found, _ = epochs(Computed(COUNT, told), 1, num_workers="auto", max_workers=MOST)
    assert COUNT // BATCH == len(found[0])
    assert all(worker < most == MOST for batch in found[0] for _, worker, most in batch)


@pytest.mark.thorough
def test_workers_are_added_and_let_go(monkeypatch):
    """Samples that wait get more workers; a step that hides them, fewer."""
    monkeypatch.setattr(windows, "LEAST_S", 0.4)
    with DataLoader(Computed(10**6, waited_for), 4, num_workers="auto", max_workers=8) as loader:
        batches = iter(loader)
        take_until(batches, lambda: more_than(loader, 3))
        pids = {process.pid for process in batches._workers if process.pid}
        take_until(batches, lambda: not more_than(loader, 2), step_s=0.05)
        take_until(batches, lambda: sum(map(is_there, pids)) <= 3, step_s=0.05)
        changes = loader.stats().changes
        assert changes[0].after > changes[0].before == 2
        assert all(change.waited_since is None for change in changes[:-1])
        text = str(loader.report())
    assert f"since batch {changes[-1].batch} of epoch 0: the loop waited" in text


@pytest.mark.thorough
def test_why_the_number_changed_is_told(capsys, restless):
    """By `top`, which looks from outside, as by the report and in `stats()`."""
    with DataLoader(WAITING, BATCH, num_workers="auto", max_workers=MOST) as loader:
        for _ in range(2):
            iterator = iter(loader)
            take_until(iterator, lambda: loader.stats().changes)
            last = loader.stats().changes[-1]
            assert 0 == main(["top", str(os.getpid()), "--once"])
            shown, text = capsys.readouterr().out, str(loader.report())
            line = (
                f"{times(last.after, 'worker')} since batch {last.batch} of epoch {last.epoch}: "
                f"the loop waited {percent(last.waited_share)} of the time with {last.before}"
            )
            assert line in shown and line in text


def test_how_long_the_loop_waited_since():
    """The report says the newest change in one sentence, with what it was good for."""
    earlier, last = WorkersChange(0, 100, 2, 4, 0.6), WorkersChange(0, 240, 4, 6, 0.31, 0.02)
    line = "6 workers since batch 240 of epoch 0: the loop waited 31 % of the time with 4"
    assert [f"{line}, 2 % with 6"] == workers_lines([earlier, last])
    assert [line] == workers_lines([replace(last, waited_since=None)])
    assert [] == workers_lines([])


def more_than(loader, count):
    changes = loader.stats().changes
    return bool(changes) and changes[-1].after > count


def take_until(batches, condition, step_s=0.0):
    """Take batches, each for a step, until something is true."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline
        next(batches)
        time.sleep(step_s)


def is_there(pid):
    return os.path.exists(f"/proc/{pid}/exe")


@pytest.mark.thorough
def test_the_number_is_an_int_and_the_most():
    """All code that asks expects an int; "auto" is remembered by copies, pickles and attributes."""
    loader = DataLoader(Numbered(COUNT), num_workers="auto", max_workers=MOST)
    remade = DataLoader(
        Numbered(COUNT),
        num_workers=loader.num_workers,
        **{name: getattr(loader, name) for name in ("min_workers", "max_workers", "seed_by")},
    )
    for each in (loader, remade, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert (MOST, MOST, "batch") == (each.num_workers, each.max_workers, each.seed_by)
        iterator = iter(each)
        assert 2 == iterator._running.processes.working
        each.close()


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "most"), [("num_workers", 1), ("max_workers", 9)])
def test_the_most_may_be_set(name, most):
    """As torch's number of workers, for the next epoch; it says the most that there may be."""
    with DataLoader(Numbered(COUNT), num_workers="auto", max_workers=MOST) as loader:
        setattr(loader, name, most)
        iterator = iter(loader)
        assert most == iterator._num_workers
        assert min(2, most) == iterator._running.processes.working
        loader.num_workers = 0
        assert COUNT == len(list(loader))


@pytest.mark.thorough
def test_processes_are_those_that_are_there(monkeypatch):
    """Code that asks torch's iterator for them gets no pid of None, which means its own process."""
    calm(monkeypatch)
    with DataLoader(Computed(10**6, waited_for), num_workers="auto", max_workers=MOST) as loader:
        iterator = iter(loader)
        assert 2 == len(iterator._workers)
        change(iterator, 2)
        take_until(iterator, lambda: len(iterator._workers) == 4)
        assert all(is_there(process.pid) for process in iterator._workers)
        change(iterator, -2)
        take_until(iterator, lambda: len(iterator._workers) == 2)


AUTO = {"num_workers": "auto", "max_workers": MOST}


def ours(number):
    return DataLoader(Numbered(COUNT), num_workers=number, max_workers=MOST)


def wrapped(number):
    plain = torch.utils.data.DataLoader(Numbered(COUNT), num_workers=number)
    return shmloader.wrap(plain, **AUTO)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "number", "expected"),
    [
        (ours, 3, 3),
        (ours, numpy.int64(3), 3),
        (wrapped, 3, 3),
        (wrapped, 0, 2),
        (lambda number: shmloader.wrap(ours(number), **AUTO), "auto", 2),
        (lambda number: shmloader.wrap(ours(number), **AUTO), 3, 3),
    ],
)
def test_a_number_with_max_workers_is_the_first(make, number, expected):
    """Whatever the number says is the beginning, where it may grow; of wrapped loaders too."""
    with make(number) as loader:
        assert expected == iter(loader)._running.processes.working
        assert MOST == loader.num_workers


@pytest.mark.parametrize("number", [4, 0, True, numpy.int64(2)])
def test_a_number_for_loaders_that_have_theirs_is_refused(number):
    """It would be lost in silence: each loader is given its own."""
    plain = torch.utils.data.DataLoader(Numbered(COUNT), num_workers=1)
    with pytest.raises(TypeError, match=r'wrap\(\) takes num_workers="auto" or None, but got'):
        shmloader.wrap(plain, num_workers=number)
    for options in ({}, {"max_workers": 8}):
        with pytest.raises(TypeError, match="give a number to the loader, and max_workers"):
            shmloader.install(num_workers=number, **options)
    assert not is_installed()


STREAM = Iterated(lambda: range(COUNT))


class Stateful(Numbered):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("dataset", "options", "why"),
    [
        (STREAM, {}, "iterable-style: give num_workers as a number"),
        (Stateful(COUNT), {}, r"state_dict\(\)"),
        (Numbered(COUNT), {"seed_by": "worker"}, "random numbers must depend on the batch"),
        (
            Numbered(COUNT),
            {"min_workers": 9, "max_workers": 4},
            "min_workers=9 exceeds max_workers=4",
        ),
    ],
)
def test_refused(dataset, options, why):
    """What cannot be, with the reason."""
    with pytest.raises(ValueError, match=why):
        DataLoader(dataset, num_workers="auto", **options)


def test_another_word():
    """An error that names the one."""
    with pytest.raises(TypeError, match='num_workers should be an int or "auto"'):
        DataLoader(Numbered(COUNT), num_workers="automatic")


@pytest.fixture
def installed(monkeypatch):
    """Serve torch's loaders, until the end of the test."""
    monkeypatch.setattr(errors, "_warned", set())
    yield shmloader.install
    shmloader.uninstall()


@pytest.mark.thorough
def test_install(installed, restless):
    """Loaders begin with their own number; those that cannot keep it, and 0 stays 0."""
    installed(num_workers="auto", max_workers=MOST)
    with warnings.catch_warnings(record=True, action="always") as told:
        generator = torch.Generator().manual_seed(7)
        loader = torch.utils.data.DataLoader(DRAWN, BATCH, num_workers=3, generator=generator)
        expected = fixed(DRAWN, shuffle=False)[0]
        assert expected == [made.tolist() for made in loader]
        assert 3 == shmloader.stats(loader).changes[0].before
        stream = torch.utils.data.DataLoader(STREAM, None, num_workers=1)
        for _ in range(2):
            assert list(range(COUNT)) == [int(each) for each in stream]
        assert not shmloader.stats(stream).changes
        here = torch.utils.data.DataLoader(Numbered(COUNT), num_workers=0)
        assert COUNT == len(list(here))
    text = [str(each.message) for each in told]
    assert 1 == sum("num_workers=1 stays" in each for each in text)
    assert 1 == sum("random numbers in workers depend on the batch" in each for each in text)
    assert 1 == sum("get_worker_info().num_workers is 5" in each for each in text)
    shmloader.close(loader)
    shmloader.close(stream)


def change(iterator, count):
    """Add workers or let some go, as the controller would."""
    iterator._running.processes.change(count, iterator._transport)


def calm(monkeypatch):
    """Nothing changes but what a test changes."""
    monkeypatch.setattr(Controller, "decide", lambda self, window, limits: window.workers)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_of_an_installed_loader_may_add_workers(installed, monkeypatch):
    """There are as many places for states of workers as there are seats."""
    calm(monkeypatch)
    installed(num_workers="auto", max_workers=MOST)
    loaders = [torch.utils.data.DataLoader(Numbered(COUNT), None, num_workers=2) for _ in range(2)]
    batches = iter(loaders[0])
    found = [next(batches) for _ in range(10)]
    shmloader.load_state_dict(loaders[1], shmloader.state_dict(loaders[0]))
    batches = iter(loaders[1])
    found.append(next(batches))
    change(batches, 2)
    found += batches
    assert [float(made[0]) for made in found] == [1000.0 * number for number in range(COUNT)]
    for loader in loaders:
        shmloader.close(loader)


@pytest.mark.thorough
def test_nobody_comes_after_the_end(restless):
    """Once an iterator has ended its workers, none is added, and its segment may be another's."""
    with DataLoader(Numbered(COUNT), BATCH, num_workers="auto", max_workers=MOST) as loader:
        iterator = iter(loader)
        assert COUNT // BATCH == sum(1 for _ in iterator)
        assert not any(process.is_alive() for process in iterator._workers)
        assert next(iterator, None) is None
        assert not any(process.is_alive() for process in iterator._workers)


def test_as_many_come_and_go_as_are_asked_for(monkeypatch):
    """At most as many as there are seats, and all but one; no batch is lost."""
    calm(monkeypatch)
    with DataLoader(WAITING, None, num_workers="auto", max_workers=3) as loader:
        iterator = iter(loader)
        counts = []
        for count in (1, 1, -1, -9):
            change(iterator, count)
            counts.append(iterator._running.processes.working)
        assert [3, 3, 2, 1] == counts
        assert COUNT == sum(1 for _ in iterator)


def test_an_epoch_begins_without_those_that_are_not_there(monkeypatch):
    """Workers that live on are told of it and answer; a seat that is not taken cannot."""
    calm(monkeypatch)
    options = {"num_workers": "auto", "max_workers": 3, "persistent_workers": True}
    with DataLoader(WAITING, 4, **options) as loader:
        assert [COUNT // 4] * 2 == [sum(1 for _ in loader) for _ in range(2)]


def test_an_interrupt_while_one_is_let_go(monkeypatch):
    """It is asked nothing more, or stays: no request is lost behind its end."""
    calm(monkeypatch)
    with DataLoader(WAITING, None, num_workers="auto", max_workers=3) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        with monkeypatch.context() as patch:
            patch.setattr(iterator._transport.requests, "close_seat", interrupt)
            with pytest.raises(KeyboardInterrupt):
                change(iterator, -1)
        found += iterator
    assert COUNT == len(found)


def interrupt(worker):
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_let_go_first", [False, True])
def test_batches_of_a_dead_worker_raise_in_their_places(is_let_go_first, monkeypatch):
    """Without restarts the worker that is left goes on, even if it was let go before."""
    calm(monkeypatch)
    with DataLoader(WAITING, None, num_workers="auto", max_workers=3) as loader:
        iterator = iter(loader)
        next(iterator)
        if is_let_go_first:
            monkeypatch.setattr(Seats, "_has_answered", lambda self, worker: False)
            change(iterator, -1)
            assert {1} == iterator._running.processes.seats.leaving
        kill(iterator, 0)
        change(iterator, -1)
        right, errors = rest_of(iterator)
        assert not iterator._running.processes.seats.leaving
    assert "exited unexpectedly" in errors[0]
    assert all("worker 0 died before it answered" in text for text in errors[1:])
    assert COUNT == right + len(errors) - 1


def test_no_batch_is_waited_for_of_nobody(monkeypatch):
    """All have died, and nothing replaces them: each batch that is left raises."""
    calm(monkeypatch)
    with DataLoader(WAITING, None, num_workers="auto", max_workers=3) as loader:
        iterator = iter(loader)
        next(iterator)
        for worker in range(2):
            kill(iterator, worker)
        right, errors = rest_of(iterator)
    assert "all workers that could be asked have died" in errors[-1]
    assert COUNT == right + len(errors) - 1


def kill(iterator, worker):
    """Kill a worker that may be asked, and wait for its end without the loader's knowledge."""
    deadline = time.monotonic() + LONGEST_S
    while not iterator._transport.ledger.is_seated(worker) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert iterator._transport.ledger.is_seated(worker)
    pid = iterator._workers[worker].pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def rest_of(iterator):
    """
    Ask an iterator that has given a batch for all others.

    Returns:
        How many it has given, and the errors, of which the first takes no batch's place.
    """
    right, errors = 1, []
    for _ in range(COUNT + 9):
        try:
            right += next(iterator, None) is not None
        except RuntimeError as error:
            errors.append(str(error))
    return right, errors


@pytest.mark.thorough
def test_the_trainer_parks_beside_one_that_sat_down():
    """Who is added and finds no request that waits ends no park."""
    squares = Squares(workers=2, slots=4, begin=1)
    try:
        squares.send("first", (0, 2), ANY)
        squares.take()
        squares.processes.change(1, squares.transport)
        squares.send("second", (0, 2), ANY)  # while it starts
        squares.take()
        deadline = time.monotonic() + LONGEST_S
        while not squares.transport.ledger.is_seated(1) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert squares.transport.ledger.is_seated(1)
        waits, end = 0, time.monotonic() + 0.2
        while time.monotonic() < end:
            squares.transport.wait(0.1, ())
            waits += 1
    finally:
        squares.close()
    assert waits < 10


@pytest.mark.thorough
def test_memory_is_kept_free_for_those_that_are_there():
    """With many seats, slots are reserved for two workers alone."""
    with DataLoader(Numbered(COUNT), num_workers="auto", max_workers=32) as loader:
        iterator = iter(loader)
        assert 4 == iterator._transport.budget.reserve


def test_batches_are_made_ahead_for_those_that_are_there():
    """Not for all seats: large batches would lie in ever other slots, whose pages come and go."""
    with DataLoader(Numbered(COUNT), num_workers="auto", max_workers=8) as loader:
        iterator = iter(loader)
        for _ in range(8):
            next(iterator)
            time.sleep(0.02)  # in which workers could make more
            transport, processes = iterator._transport, iterator._running.processes
            assert transport.ledger.outstanding() <= 2 * processes.working


@pytest.mark.parametrize(("left", "each", "count"), [(520, 330, 3), (430, 330, 2), (-10, 330, 2)])
def test_as_many_workers_as_have_memory(monkeypatch, left, each, count):
    """A quarter of what is left stays for batches and for others."""
    monkeypatch.setattr(windows.limits, "available_bytes", lambda: left << 20)

    assert count == windows.workers_with_memory(2, each << 20)
    assert windows.workers_with_memory(2, 0) > 1000  # before the first is measured
