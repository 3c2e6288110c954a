"""What a worker that leaves runs of what was registered with atexit, and for how long."""

import atexit
import functools
import multiprocessing
import os
import sys
import time

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from shmloader import DataLoader
from tests.helpers.datasets import Computed, DiesOnce

TRAINER = os.getpid()  # in a worker that was not forked it is another number, too
STARTS = {
    "fork": {"multiprocessing_context": "fork"},
    "fork, replaced": {"multiprocessing_context": "fork", "restarts": 1},
    "forkserver": {"multiprocessing_context": "forkserver"},
    "spawn": {"multiprocessing_context": "spawn"},
}


def note(path, word):
    with open(path, "a") as file:
        file.write(f"{word}\n")


def noted(path):
    return path.read_text().split() if path.exists() else []


def register(path, *words):
    for word in words:
        atexit.register(note, path, word)


class Finalized:
    """Notes its end, in a worker."""

    def __init__(self, path):
        self.path = path

    def __del__(self):
        if os.getpid() != TRAINER:
            note(self.path, "finalized")


@pytest.mark.core(first=1)
@pytest.mark.filterwarnings("ignore::shmloader.errors.RestartWarning")
@pytest.mark.parametrize("start", STARTS)
def test_a_worker_runs_its_own_exit_functions(tmp_path, start):
    """
    Each once and the last first; those of the trainer stay as they are, with all they hold.

    What one puts into a queue arrives: a worker's queues are written to their ends.
    """
    path = tmp_path / "notes"
    queue = multiprocessing.get_context(STARTS[start]["multiprocessing_context"]).Queue()
    inherited = functools.partial(note, path, "inherited")
    atexit.register(inherited)
    if sys.version_info < (3, 13):  # from then on multiprocessing lets go of them
        atexit.register(id, Finalized(path))
    options = {"worker_init_fn": functools.partial(register_later, path, queue), **STARTS[start]}
    dataset = Computed(3, int)
    if "restarts" in options:
        dataset = DiesOnce(dataset, tmp_path / "killed", 1)
    try:
        assert 3 == len(list(DataLoader(dataset, num_workers=1, **options)))
    finally:
        atexit.unregister(inherited)
        atexit.unregister(id)

    assert (["second", "first"], "ends") == (noted(path), queue.get(timeout=30))


def register_later(path, queue, worker):
    register(path, "first", "second")
    atexit.register(queue.put, "ends")


class Uneven(IterableDataset):
    """One sample of worker 0, and for two seconds those of worker 1."""

    def __iter__(self):
        worker = get_worker_info().id
        for index in range(20 * worker + 1):
            time.sleep(0.1 * worker)
            yield index


def sleep_at_the_end(worker):
    atexit.register(time.sleep, 1000 * (1 - worker))


def test_a_worker_that_does_not_end_is_no_death():
    """A worker that has no more to give, and whose exit functions hang, ends quietly."""
    options = {"num_workers": 2, "batch_size": None, "multiprocessing_context": "fork"}
    loader = DataLoader(Uneven(), worker_init_fn=sleep_at_the_end, **options)

    assert 22 == len(list(loader))


HANGS = {
    "Python": "time.sleep(1000)",
    "native code": "[library.pthread_mutex_lock(mutex) for _ in range(2)]",
}
PROGRAM = """
import atexit, ctypes, time
from shmloader import Pool
from tests.deaths.test_exit_functions import note, register

library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)


def hang():
    {hang}


def begin():
    register("notes", "never")
    atexit.register(hang)
    register("notes", "first")


if __name__ == "__main__":
    with Pool(1, mp_context={method!r}) as pool:
        pool.submit(begin).result()
    print(open("notes").read().split())
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "hang"),
    [
        ("fork", "Python"),
        ("forkserver", "native code"),
        ("fork", "native code"),
        ("spawn", "Python"),
    ],
)
def test_exit_functions_that_hang_are_ended(run_program, method, hang):
    """A pool waits for its workers however long, but not for functions that never return."""
    status, lines, errors = run_program(PROGRAM.format(hang=HANGS[hang], method=method))

    assert (0, ["['first']"]) == (status, lines), errors


WATCHED = """
import atexit, faulthandler
from shmloader import Pool

if __name__ == "__main__":
    faulthandler.dump_traceback_later(3600)
    for call in ((abs, -3), (atexit.register, int)):
        with Pool(1, mp_context="fork") as pool:
            print(pool.submit(*call).result())
"""


def test_a_watchdog_of_the_trainer_holds_no_worker(run_program):
    """A worker that was forked while faulthandler waited to dump the trainer's stacks ends."""
    assert (0, ["3", "<class 'int'>"]) == run_program(WATCHED)[:2]
