"""A server is killed or stopped at any time, and ends with its trainer; batches are torch's."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader, RestartWarning
from shmloader.processes import watching
from shmloader.processes.servers import servers
from tests.deaths.test_deaths import HEAD
from tests.helpers.healing import open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script
from tests.helpers.programs import wait_until
from tests.helpers.stage import play_file
from tests.helpers.warned import recorded

BY_SERVER = {"multiprocessing_context": "forkserver"}


@pytest.fixture(autouse=True)
def without_servers():
    """Begin and end without a server."""
    servers.close()
    yield
    servers.close()


def the_server():
    (server,) = servers.processes()
    return server


def kill_server():
    server = the_server()
    server.kill()
    assert wait_until(lambda: not server.is_alive())


@pytest.mark.thorough
def test_death_between_epochs(tmp_path):
    """The next epoch's workers are another server's."""
    expected = undisturbed(Mortal(Script(tmp_path)), plan=(None, None))
    with open_loader(DataLoader, Mortal(Script(tmp_path)), **BY_SERVER) as loader:
        actual = [[batch.tolist() for batch in loader]]
        kill_server()
        actual.append([batch.tolist() for batch in loader])

    assert expected == actual
    assert 2 == the_server().count


@pytest.mark.thorough
def test_death_while_workers_start(tmp_path):
    """Those that were ordered and not started are ordered again; it is no restart."""
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with open_loader(DataLoader, Mortal(Script(tmp_path)), restarts=1, **BY_SERVER) as loader:
        iterator = iter(loader)
        kill_server()
        actual = [batch.tolist() for batch in iterator]
        restarts = loader.stats().restarts

    assert (expected, 0, 2) == (actual, restarts, the_server().count)


@pytest.mark.thorough
def test_death_with_a_worker(tmp_path):
    """A worker that dies behind its server is replaced by another one's: one restart."""
    script = Script(tmp_path, "item 9")
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with (
        open_loader(
            DataLoader, Mortal(script), restarts=2, prefetch_factor=1, **BY_SERVER
        ) as loader,
        recorded() as warned,
    ):
        with script.held_back():
            iterator = iter(loader)
            actual = [next(iterator).tolist()]
            kill_server()
        actual += [batch.tolist() for batch in iterator]
        restarts = loader.stats().restarts

    assert (expected, 1) == (actual, restarts)
    assert [RestartWarning] == [warning.category for warning in warned]


# A server, or the nursery, which is another process that forks workers.


def mother_of(iterator):
    mother = iterator._running.processes.mother
    return getattr(mother, "server", mother)


mothers = pytest.mark.parametrize("by", [{}, BY_SERVER], ids=["nursery", "server"])


@pytest.mark.thorough
@pytest.mark.parametrize(("by", "points"), [({}, ["item 3"]), (BY_SERVER, [])])
def test_its_workers_outlive_it(tmp_path, by, points):
    """They go on as the same processes, without restarts too, and no other one is started."""
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    dataset, options = Mortal(Script(tmp_path, *points)), {"restarts": len(points), **by}
    with (
        recorded() as warned,
        open_loader(DataLoader, dataset, prefetch_factor=1, **options) as loader,
    ):
        iterator = iter(loader)
        actual = [next(iterator).tolist() for _ in range(2)]
        mother, workers = mother_of(iterator), [*iterator._workers]
        mother.kill()
        assert wait_until(lambda: not mother.is_alive())
        assert all(worker.is_alive() for worker in workers)
        actual += [batch.tolist() for batch in iterator]
        assert workers == iterator._workers

    assert (expected, 1, len(points)) == (actual, mother.count, len(warned))
    assert not any(os.path.exists(f"/proc/{worker.pid}/exe") for worker in workers)


@pytest.mark.thorough
@mothers
def test_it_is_deaf(tmp_path, by):
    """Signals that would end any other process leave it alone."""
    script = Script(tmp_path, "item 0", later=["item 23"])
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    with recorded() as warned, open_loader(DataLoader, Mortal(script), restarts=2, **by) as loader:
        iterator = iter(loader)
        actual = [next(iterator).tolist()]
        mother, pid = mother_of(iterator), mother_of(iterator).process.pid
        for number in numbers * 5:
            os.kill(pid, number)
        script.arm()
        actual += [batch.tolist() for batch in iterator]

        assert (pid, 1) == (mother.process.pid, mother.count)
    assert (expected, 2) == (actual, len(warned))


@pytest.mark.thorough
@mothers
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_end_when_it_is_hit(tmp_path, number, by):
    """It is killed or stopped when the loader closes: nothing is left, and it takes no time."""
    script = Script(tmp_path, "item 3")
    with open_loader(DataLoader, Mortal(script), restarts=9, prefetch_factor=1, **by) as loader:
        iterator = iter(loader)
        with pytest.warns(RestartWarning):
            next(iterator), next(iterator)
        mother = mother_of(iterator)
        pids = [(worker.pid, watching.start_time(worker.pid)) for worker in iterator._workers]
        os.kill(mother.process.pid, number)
        iterator._shutdown_workers()

        assert not any(watching.is_running(*each) for each in pids)
    servers.close()
    assert not mother.is_alive()


class Held(Dataset):
    """The first sample comes when a file is there."""

    def __init__(self, folder):
        self.file = folder / "released"

    def __len__(self):
        return 24

    def __getitem__(self, index):
        assert index or wait_until(self.file.exists)
        return torch.full((64,), index)


@pytest.mark.thorough
def test_slots_outlive_the_server(tmp_path):
    """A worker that is amid a batch when its server is killed is not taken for dead."""
    options = {"in_order": False, "restarts": 1, "num_workers": 2, "batch_size": 2}
    with DataLoader(Held(tmp_path), **options, **BY_SERVER) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        pids = [worker.pid for worker in iterator._workers]
        kill_server()
        for _ in range(4):
            time.sleep(0.11)  # longer than the trainer waits between two looks at its workers
            found.append(next(iterator))
        (tmp_path / "released").touch()
        found += iterator
        assert pids == [worker.pid for worker in iterator._workers]
        assert 0 == loader.stats().restarts

    numbers = sorted(int(row[0]) for batch in found for row in batch)
    assert list(range(24)) == numbers
    assert all(torch.equal(row, row[:1].expand(64)) for batch in found for row in batch)


def program_of(behind):
    """Write a program that iterates, with lines of its own behind the first batch."""
    return f"""{HEAD}
def main():
    loader = make(Numbers(10**6, 0.01), multiprocessing_context="forkserver")
    iterator = iter(loader)
    next(iterator)
    {behind}
    say("ready")
    for _ in iterator:
        pass


if __name__ == "__main__":
    main()
"""


def workings(pids):
    """Leave out multiprocessing's tracker of resources, which the child keeps too."""
    return [pid for pid in pids if b"resource_tracker" not in command_of(pid)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.thorough
def test_trainer_is_killed(libraries, tmp_path):
    """Server and workers are gone within two seconds, also if a child of the trainer lives on."""
    text = program_of("os.fork() or time.sleep(1000)")
    with play_file(libraries, tmp_path, text) as program:
        program.line()
        program.send(signal.SIGKILL)
        program.wait()
        assert wait_until(lambda: len(workings(program.left_now())) == 1, 2.0)
    assert "" == program.errors


@pytest.mark.thorough
def test_forked_child_of_the_trainer(libraries, tmp_path):
    """A child has servers of its own, and its end leaves the parent's alone."""
    text = program_of(
        """
    pid = os.fork()
    if pid == 0:
        assert 6 == len(list(make(Numbers(6), multiprocessing_context="forkserver")))
        raise SystemExit(0)
    assert (pid, 0) == os.waitpid(pid, 0)
    for _ in range(50):
        next(iterator)
    assert 6 == len(list(make(Numbers(6), multiprocessing_context="forkserver")))
    say("right")
    return""",
    )
    with play_file(libraries, tmp_path, text) as program:
        assert 0 == program.wait(), program.errors
        assert ["right"] == program.lines()
        assert set() == program.left()
    assert "" == program.errors


class Doomed(Dataset):
    """Ends its worker at its second batch, or when it is unpickled there."""

    def __init__(self, ends_at_start):
        self.ends_at_start = ends_at_start

    def __setstate__(self, state):
        if state["ends_at_start"]:
            os._exit(7)
        self.__dict__ = state

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index if index < 2 else os._exit(7)


@pytest.mark.parametrize("ends_at_start", [False, True])
def test_an_error_says_how_a_worker_ended(ends_at_start):
    """It is no child of the training process, which gets no signal: the cause has its exit code."""
    loader = DataLoader(Doomed(ends_at_start), num_workers=1, **BY_SERVER)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly$") as raised:
        list(loader)
    where = " (see what it wrote to its standard error)"
    unbegun = f" before it began{where}" if ends_at_start else ""

    said = rf"DataLoader worker \(pid \d+\) exited with code 7{re.escape(unbegun)}"
    assert re.fullmatch(said, str(raised.value.__cause__))


@pytest.mark.parametrize("ends_at_start", [False, True])
def test_samples_are_not_blamed_for_a_worker_that_never_began(ends_at_start):
    """The advice is to check the batch, or what the worker wrote at its start."""
    loader = DataLoader(Doomed(ends_at_start), num_workers=1, restarts=1, **BY_SERVER)
    with recorded(), pytest.raises(RuntimeError, match="all 1 restarts") as raised:
        list(loader)

    assert ends_at_start == ("before it began" in str(raised.value))
    assert ends_at_start != ("check these samples" in str(raised.value))
