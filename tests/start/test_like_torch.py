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


@pytest.mark.core(every=2)
@pytest.mark.parametrize(("method", "options"), WAYS)
def test_worker_is_like_torchs(changed, method, options):
    """Surroundings, signals, names and draws are those of a worker of torch's spawn."""
    expected = look(TorchDataLoader, "spawn")
    actual = look(DataLoader, method, **options)
    expected["name"] = {"spawn": "SpawnProcess", "forkserver": "ForkServerProcess"}[method]
    expected["method"] = method

    assert expected == actual


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
