"""A process is known by its pid and its start time, and a worker ends with its trainer."""

import contextlib
import os
import resource
import signal
import subprocess
import sys

import pytest

from shmloader.processes import watching
from tests.helpers.programs import wait_until


@pytest.fixture
def process():
    """Returns a process that waits for the end of its input."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_to_be_reaped_does_not_run(process):
    """A process that was killed does not run, even before its parent has asked for its status."""
    started = watching.start_time(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    assert not watching.is_running(process.pid, started)
    process.wait()
    assert not watching.is_running(process.pid, started)
    assert watching.start_time(process.pid) is None


def test_a_stopped_process_runs(process):
    """A process that is stopped has not ended."""
    started = watching.start_time(process.pid)
    process.send_signal(signal.SIGSTOP)

    assert watching.is_running(process.pid, started)


@pytest.mark.parametrize(
    ("error", "expected"), [(None, True), (PermissionError, True), (ProcessLookupError, False)]
)
def test_without_a_start_time_the_pid_decides(monkeypatch, error, expected):
    """Without start times and descriptors of processes, a signal finds out if there is one."""
    sent = []

    def kill(pid, number):
        sent.append((pid, number))
        if error:
            raise error

    monkeypatch.setattr(watching.os, "kill", kill)
    monkeypatch.delattr(watching.os, "pidfd_open")

    assert (expected, [(7, 0)]) == (watching.is_running(7, None), sent)


@contextlib.contextmanager
def without_descriptors():
    """Let this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_out_of_descriptors_no_process_looks_dead(process):
    """A process whose record cannot be read runs as long as there is one with its pid."""
    started = watching.start_time(process.pid)
    with without_descriptors():
        assert watching.is_running(process.pid, started)
        assert not watching.Watch(process.pid, started).has_ended
    process.kill()
    process.wait()
    with without_descriptors():
        assert not watching.is_running(process.pid, started)
        assert watching.Watch(process.pid, started).has_ended


def test_names_do_not_disturb_the_record(process):
    """A process may have any name, even one that looks like the kernel's record of it."""
    with open(f"/proc/{os.getpid()}/comm") as file:
        name = file.read()
    try:
        with open(f"/proc/{os.getpid()}/comm", "w") as file:
            file.write(") Z 1 2 3")
        assert watching.is_running(os.getpid(), watching.start_time(os.getpid()))
    finally:
        with open(f"/proc/{os.getpid()}/comm", "w") as file:
            file.write(name)


@pytest.mark.thorough
def test_a_watch_of_a_process_that_is_gone_ends_at_once(run_program):
    """A pid that is another process's by now is not watched: the watching process ends."""
    script = """
import os
from shmloader.processes.watching import ParentWatch

watch = ParentWatch(os.getpid())
watch.started = 1
watch.watch()
print("watches a stranger")
"""
    assert (1, [], "") == run_program(script)


@pytest.mark.thorough
def test_a_process_without_descriptors_watches(run_program):
    """A worker that has no descriptor left does not take its trainer for another process."""
    script = """
import os, resource
from shmloader.processes.watching import ParentWatch

watch = ParentWatch(os.getpid())
if (child := os.fork()) == 0:
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    watch.watch()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert (0, ["7"], "") == run_program(script)


def test_a_process_runs_until_its_last_thread_ends():
    """A process whose first thread has ended runs on; it is a zombie with threads."""
    script = (
        "import ctypes, threading;"
        "threading.Thread(target=input).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        started = watching.start_time(process.pid)
        assert wait_until(lambda: watching._stat(process.pid)[0] == "Z")

        assert watching.is_running(process.pid, started)
        assert watching.reap(process.pid, started) is None
        process.kill()
        assert wait_until(lambda: not watching.is_running(process.pid, started))


def test_only_a_child_of_that_start_time_is_reaped():
    """A process that was adopted can be reaped; another one with its pid cannot."""
    child = os.fork()
    if child == 0:
        os._exit(7)
    started = watching.start_time(child)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)

    assert watching.reap(child, started + 1) is None
    assert watching.reap(child, None) is None
    assert 7 == watching.reap(child, started)
    assert watching.reap(child, started) is None


@pytest.mark.parametrize("has_descriptor", [True, False])
def test_watch_sees_the_end(process, monkeypatch, has_descriptor):
    """An end is seen with and without a descriptor, and of a process that was gone before."""
    if not has_descriptor:
        monkeypatch.delattr(os, "pidfd_open")
    started = watching.start_time(process.pid)
    watch, other = watching.Watch(process.pid, started), watching.Watch(process.pid, 1)

    assert [has_descriptor, False] == [bool(watch.descriptors), watch.has_ended]
    assert other.has_ended
    process.kill()
    assert wait_until(lambda: watch.has_ended)
    process.wait()
    assert watching.Watch(process.pid, started).has_ended
    watch.close()
    other.close()
