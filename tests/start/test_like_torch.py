"""What a worker of spawn or forkserver finds, beside torch's, when a preloaded server forks it."""

import os
import resource
import signal
import sys

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

from shmloader import DataLoader
from shmloader.processes.servers import servers
from tests.start.looks import look

# The options of each, and how multiprocessing calls a worker.
WAYS = {
    "forkserver": ({}, "ForkServerProcess"),
    "spawn": ({"preload": ("json",)}, "SpawnProcess"),
}


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
def test_worker_is_like_torchs(changed):
    """Surroundings, signals, names and draws are those of a worker of torch's spawn."""
    expected = look(TorchDataLoader, "spawn")
    for method, (options, name) in WAYS.items():
        expected |= {"method": method, "name": name}

        assert expected == look(DataLoader, method, **options)


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


LATER = """
import os, signal, sys
from torch.utils.data import DataLoader as TorchDataLoader
from shmloader import DataLoader
from shmloader.processes.servers import servers
from tests.start.looks import look

if __name__ == "__main__":
    look(DataLoader, "forkserver")
    (before,) = servers.processes()
    os.mkdir("below")
    os.chdir("below")
    sys.argv.append("--more")
    os.nice(3)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGALRM})
    for number, name in ((0, "typed"), (2, "errors")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    found = look(DataLoader, "forkserver")
    print(os.path.basename(found["cwd"]), found["argv"][-1], found["nice"] == os.nice(0))
    print(*(os.path.basename(found["standard"][each]) for each in (0, 2)))
    expected = look(TorchDataLoader, "spawn")
    print(*(each for each in expected if expected[each] != found[each]))
    (after,) = servers.processes()
    print(before.process.pid == after.process.pid)
"""


@pytest.mark.thorough
def test_what_the_same_server_serves(run_program):
    """Folder, arguments, niceness, cores, blocked signals and standard files come with a birth."""
    expected = ["below --more True", "typed errors", "name method", "True"]
    assert (0, expected, "") == run_program(LATER)
