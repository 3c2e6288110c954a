"""`nice`: workers that leave the cores to the training step, and deliver what they always do."""

import errno
import os
import threading

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader, RestartWarning
from tests.helpers.mortal import Mortal, Script

COUNT = 12
METHODS = ("fork", "spawn", "forkserver")


class Niceness(Mortal):
    """Samples (3,) int64: index, niceness of the process's first thread, and of this thread."""

    count = COUNT

    def __getitem__(self, index):
        self.script(f"item {index}")
        return torch.tensor([index, niceness(os.getpid()), niceness(threading.get_native_id())])


def niceness(thread):
    return os.getpriority(os.PRIO_PROCESS, thread)


def own_and(more):
    return min(19, niceness(0) + more)


def samples(loader):
    """The (index, niceness, niceness) of every sample of an epoch."""
    return [tuple(map(int, sample)) for batch in loader for sample in batch]


def expected(more):
    return [(index, own_and(more), own_and(more)) for index in range(COUNT)]


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_workers_are_as_nice_as_was_asked(method):
    """It is added to the trainer's niceness in each worker, whatever starts it."""
    before = niceness(0)
    options = {"num_workers": 1 if method == "spawn" else 2, "multiprocessing_context": method}
    with DataLoader(Niceness(), 3, nice=5, **options) as loader:
        found = samples(loader)

    assert (expected(5), before) == (found, niceness(0))


@pytest.mark.core(first=1)
@pytest.mark.parametrize("more", [0, 19, 1])
def test_batches_are_the_same(more):
    """Persistent workers keep it in the next epoch, and do not add it twice."""
    with DataLoader(Niceness(), 3, num_workers=2, nice=more, persistent_workers=True) as loader:
        assert [expected(more)] * 2 == [samples(loader), samples(loader)]


@pytest.mark.parametrize(
    "options",
    [{"nice": 7, "fetch_threads": 2}, {"nice": 5, "worker_init_fn": lambda worker: os.nice(2)}],
)
def test_threads_that_fetch_have_it_too_and_init_functions_add_to_it(options):
    """A thread is as nice as its worker, and `worker_init_fn` runs behind it."""
    with DataLoader(Niceness(), 3, num_workers=1, **options) as loader:
        assert expected(7) == samples(loader)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_replacement_is_as_nice(tmp_path, method):
    """A worker that heals another's death is as nice as that was."""
    script = Script(tmp_path, "item 1", "item 7")
    options = {"nice": 5, "restarts": 2, "multiprocessing_context": method}
    with (
        DataLoader(Niceness(script), 3, num_workers=2, **options) as loader,
        pytest.warns(RestartWarning),
    ):
        found = samples(loader)

    assert ([], expected(5)) == (script.left, found)


class Threaded(Dataset):
    """Starts a thread where it is unpickled, as libraries do where they are imported."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        tasks = [niceness(int(thread)) for thread in os.listdir("/proc/self/task")]
        return torch.tensor([min(tasks), len(tasks) > 1])

    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@pytest.mark.thorough
def test_threads_that_were_there_before_have_it_too():
    """The least nice thread of a spawned worker is as nice as was asked."""
    with DataLoader(
        Threaded(), 3, num_workers=1, nice=5, multiprocessing_context="spawn"
    ) as loader:
        found = {tuple(map(int, sample)) for batch in loader for sample in batch}

    assert {(own_and(5), True)} == found


@pytest.mark.thorough
def test_it_is_added_to_the_trainers(run_program):
    """A trainer that is nice itself has workers that are nicer, up to the kernel's 19."""
    status, lines, errors = run_program(
        "import os\n"
        "from tests.order.test_nice import *\n"
        "os.nice(16)\n"
        "for more in (2, 19):\n"
        "    with DataLoader(Niceness(), 3, num_workers=1, nice=more) as loader:\n"
        "        print(samples(loader) == expected(more), own_and(more))\n",
    )

    assert (0, ["True 18", "True 19"], "") == (status, lines, errors)


def refuse(*_):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.thorough
def test_a_refusal_of_the_system_is_an_error_in_the_trainer(monkeypatch):
    """Under a filter that forbids the call, next() raises what the option could not do."""
    monkeypatch.setattr(os, "setpriority", refuse)  # the forked worker has it
    refused = pytest.raises(PermissionError, match=r"Operation not permitted\): .*, or omit nice")
    with DataLoader(Niceness(), 3, num_workers=1, nice=5) as loader, refused:
        next(iter(loader))
