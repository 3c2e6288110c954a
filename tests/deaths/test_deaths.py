"""
Deaths of workers and of the trainer, at any time: torch's error if the trainer lives, nothing left.

The processes of a program are checked here; conftest.py checks /dev/shm after every test. Ends of
the trainer are in test_endings, normal ones in test_exits.
"""

import os
import queue
import re
import signal
import time

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader
from tests.helpers.programs import wait_until
from tests.helpers.stage import play_file

START_METHODS = ["fork", "forkserver", "spawn"]
DEATH = re.compile(r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly")

# The head of every program here: datasets that say when they are where the test wants them.
HEAD = """\
import ctypes, os, signal, threading, time
import torch
from torch.utils.data import Dataset, get_worker_info
from shmloader import DataLoader


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


class Numbers(Dataset):
    def __init__(self, count, pause_s=0.0):
        self.count = count
        self.pause_s = pause_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.pause_s:
            time.sleep(self.pause_s)
        return torch.full((8,), index)


class Blocked(Numbers):
    def __getitem__(self, index):
        if index >= 4:
            say("blocked")
            if get_worker_info().id == 0:
                time.sleep(1000)
            ctypes.PyDLL(None).sleep(1000)  # C code that keeps Python's lock
        return super().__getitem__(index)


def make(dataset, **options):
    return DataLoader(dataset, **{"num_workers": 2, "multiprocessing_context": "fork", **options})
"""


class Mortal(Dataset):
    """
    Numbers; the worker that fetches 3 dies and leaves the time of its death.

    It waits until the other worker fetches 4, and so has answered all requests before that.
    """

    def __init__(self, folder):
        self.path = folder / "died_at"
        self.others = folder / "others"

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 4:
            self.others.touch()
        if index == 3 and not self.path.exists():
            assert wait_until(self.others.exists)
            time.sleep(0.2)  # the trainer is parked by then
            self.path.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


def with_two_workers(dataset, **options):
    return DataLoader(dataset, num_workers=2, multiprocessing_context="fork", **options)


def drain(iterator):
    """Iterate until something is raised, and return it."""
    try:
        for _ in iterator:
            continue
    except Exception as error:
        # Without its frames, which would keep the iterator alive.
        return error.with_traceback(None)


# A worker's death


@pytest.mark.parametrize("persistent", [False, True])
def test_killed_worker_is_torchs_error(tmp_path, persistent, record_property):
    """The death of a worker raises torch's RuntimeError, whose cause names the signal."""
    loader = with_two_workers(Mortal(tmp_path), persistent_workers=persistent)
    iterator = iter(loader)
    error = drain(iterator)
    record_property("shown_after_s", time.monotonic() - float((tmp_path / "died_at").read_text()))

    assert RuntimeError is type(error)
    assert DEATH.fullmatch(str(error))
    assert RuntimeError is type(error.__cause__)
    assert f"{iterator._workers[1].pid}) is killed by signal: Killed" in str(error.__cause__)
    loader.close()


def test_iteration_after_a_death_does_not_wait(tmp_path):
    """After a worker died, iterating on gives the batches of the others, as in torch."""
    loader = with_two_workers(Mortal(tmp_path))
    iterator = iter(loader)
    error = drain(iterator)
    numbers = [batch.item() for batch in iterator]

    assert DEATH.fullmatch(str(error))
    assert [4, 6, 7, 8, 9, 10, 11] == numbers
    loader.close()


def test_worker_that_dies_while_it_leaves_is_no_news(run_program):
    """A worker killed after it was told to leave changes no batch, and close() says nothing."""
    script = """
def doomed(_):
    # Runs when a worker leaves as it was told to.
    util.Finalize(None, os.kill, args=(os.getpid(), signal.SIGKILL), exitpriority=1)


if __name__ == "__main__":
    loader = make(Numbers(12), worker_init_fn=doomed)
    for _ in range(3):
        say(sum(1 for _ in loader))
        iterator = iter(loader)
        next(iterator)
        del iterator
        iterator = iter(loader)
        next(iterator)
        loader.close()
"""
    status, lines, errors = run_program("from multiprocessing import util\n" + HEAD + script)

    assert (0, ["12"] * 3, "") == (status, lines, errors)


def test_killed_worker_shows_on_another_thread(run_program, record_property):
    """If the iterating thread gets no signal, a death is still found, and is torch's error."""
    script = """
if __name__ == "__main__":
    def iterate():
        iterator = iter(make(Numbers(1000, pause_s=0.01)))
        next(iterator)
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        started = time.monotonic()
        try:
            for _ in iterator:
                continue
        except RuntimeError as error:
            say(time.monotonic() - started)
            say(type(error.__cause__).__name__)
            say(error)

    thread = threading.Thread(target=iterate)
    thread.start()
    thread.join(30)
"""
    status, (after_s, cause, text), errors = run_program(HEAD + script)
    record_property("shown_after_s", float(after_s))

    assert (0, "", queue.Empty.__name__) == (status, errors, cause)
    assert DEATH.fullmatch(text)


# The trainer's death


@pytest.mark.core(every=3)
@pytest.mark.parametrize("method", START_METHODS)
def test_trainers_death_ends_blocked_workers(libraries, tmp_path, method):
    """Killing the trainer ends workers in a sleep and in C code that keeps Python's lock."""
    script = f"""
if __name__ == "__main__":
    for batch in make(Blocked(40), multiprocessing_context={method!r}):
        held = batch
"""
    with play_file(libraries, tmp_path, HEAD + script) as program:
        assert ["blocked", "blocked"] == [program.line(), program.line()]
        program.send(signal.SIGKILL)

        assert -signal.SIGKILL == program.wait()
        assert set() == program.left()
        assert "" == program.errors


@pytest.mark.core(every=4)
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("backing", ["memfd", "posix"])
def test_death_of_all_leaves_nothing(libraries, tmp_path, method, backing):
    """
    Killing the trainer and all workers in the middle of an epoch leaves nothing on the machine.
    """
    if (method, backing) in {("forkserver", "posix"), ("spawn", "memfd")}:
        pytest.skip("each start method and each backing is met; the full product costs seconds")
    script = f"""
if __name__ == "__main__":
    iterator = iter(make(Numbers(100000), multiprocessing_context={method!r}, batch_size=4))
    held = [next(iterator) for _ in range(6)]
    say(*(worker.pid for worker in iterator._workers))
    for batch in iterator:
        held = held[1:] + [batch]
"""
    with play_file(libraries, tmp_path, HEAD + script, SHMLOADER_BACKING=backing) as program:
        pids = [program.pid, *map(int, program.line().split())]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

        program.wait()
        assert set() == program.left()
