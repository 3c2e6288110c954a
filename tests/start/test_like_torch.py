"""What a worker of spawn or forkserver finds, beside torch's, when a preloaded server forks it."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import resource
import signal
import sys
from queue import Empty

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

from shmloader import DataLoader
from shmloader.processes.servers import servers
from tests.helpers.datasets import Computed
from tests.start.looks import look

WAYS = [("forkserver", {}), ("spawn", {"preload": ("json",)})]


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Change what a process has that workers are to have too, after a server has begun."""
    look(DataLoader, "forkserver")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHMLOADER_TEST_LOOKS", "changed")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program", "--option"])
    core = resource.getrlimit(resource.RLIMIT_CORE)
    mask, cores = os.umask(0o027), os.sched_getaffinity(0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))
    hangups = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.sched_setaffinity(0, [min(cores)])
    yield
    os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGHUP, hangups)
    resource.setrlimit(resource.RLIMIT_CORE, core)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.umask(mask)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "options"), WAYS)
def test_worker_is_like_torchs(changed, method, options):
    """Surroundings, signals, names and draws are those of a worker of torch's spawn."""
    expected = look(TorchDataLoader, "spawn")
    actual = look(DataLoader, method, **options)
    expected["name"] = {"spawn": "SpawnProcess", "forkserver": "ForkServerProcess"}[method]
    expected["method"] = method

    assert expected == actual


def say_at_the_end(queue, worker):
    """Put something into a queue when a worker begins, and when its interpreter ends."""
    queue.put(("begins", worker))
    atexit.register(queue.put, ("ends", worker))


def nothing(index):
    return index


@pytest.mark.core(every=2)
@pytest.mark.filterwarnings("ignore::shmloader.errors.RestartWarning")
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_what_a_worker_says_at_its_end_arrives(tmp_path, method):
    """Exit handlers run as in torch's since Python 3.13, and queues are written to their ends."""
    queue = multiprocessing.get_context(method).Queue()
    dataset = Killing(tmp_path / "killed") if method == "fork" else Computed(4, nothing)
    loader = DataLoader(
        dataset,
        num_workers=1,
        multiprocessing_context=method,
        worker_init_fn=functools.partial(say_at_the_end, queue),
        restarts=1,
    )
    assert 4 == len(list(loader))
    heard = {queue.get(timeout=30)}
    with contextlib.suppress(Empty):
        while True:
            heard.add(queue.get(timeout=1))

    assert {("begins", 0), ("ends", 0)} == heard


class Killing(Computed):
    """Kills its first worker, so that another one ends the epoch."""

    def __init__(self, mark):
        super().__init__(4, nothing)
        self.mark = mark

    def __getitem__(self, index):
        if index == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.thorough
def test_next_surroundings_begin_another_server(monkeypatch):
    """A variable that is set counts for workers from then on; the same surroundings share one."""
    look(DataLoader, "forkserver")
    first = {server.process.pid for server in servers.processes()}
    look(DataLoader, "forkserver")
    again = {server.process.pid for server in servers.processes()}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = look(DataLoader, "forkserver")

    assert first == again
    assert len({server.process.pid for server in servers.processes()} - again) == 1
    assert "3" == found["environment"]["OMP_NUM_THREADS"]
