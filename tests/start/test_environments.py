"""Workers in processes whose library was patched, and where /proc is another namespace's."""

import shutil
import subprocess
import sys

import pytest

from tests.helpers.programs import LONGEST_WAIT_S, search_path
from tests.helpers.stage import run_file

# What gevent's monkey patching replaces and a wait or a channel may call; it tells of our calls.
PATCHED = """
import os, select, socket, sys, time


def tell(holder, name):
    real = getattr(holder, name)

    def called(*arguments, **options):
        frame = sys._getframe(1)
        while frame.f_globals["__name__"] in ("socket", "select", "selectors"):
            frame = frame.f_back
        if frame.f_globals["__name__"].startswith("shmloader"):
            print(frame.f_code.co_qualname, "calls", name, file=sys.stderr)
        return real(*arguments, **options)

    setattr(holder, name, called)


for name in vars(socket.SocketType.__base__):
    if not name.startswith("_") and callable(getattr(socket.socket, name)):
        tell(socket.socket, name)
for name in ("socketpair", "fromfd", "create_connection", "send_fds", "recv_fds"):
    tell(socket, name)
for name in ("poll", "select", "epoll"):
    tell(select, name)
tell(os, "waitpid")
tell(time, "sleep")
"""

CLIENTS = """
import os
import warnings

from shmloader import DataLoader, Pool, publish

warnings.simplefilter("ignore")


def double(number):
    return 2 * number


if __name__ == "__main__":
    for method in ("fork", "forkserver"):
        options = dict(num_workers=2, restarts=1, timeout=50, multiprocessing_context=method)
        with DataLoader(range(64), 16, **options) as loader:
            iterator = iter(loader)
            total = len(next(iterator))
            iterator._workers[1].kill()
            print(method, total + sum(map(len, iterator)))
    with Pool(2, "fork") as pool:
        print(sum(pool.map(double, range(4))), pool.submit(double, 2).result(50))
    loader, name = DataLoader(range(64), 16, num_workers=1), f"alone-{os.getpid()}"
    with publish(loader, name, 1, consume=True) as batches:
        batches.close()
"""


TIMEOUT = "import socket; socket.setdefaulttimeout(0.001)"


@pytest.mark.thorough
@pytest.mark.parametrize("program", [PATCHED, TIMEOUT], ids=["patched", "timeout"])
def test_nothing_of_ours_goes_by_what_a_program_does_to_sockets(torch_alone, tmp_path, program):
    """No wait and no channel uses what libraries such as gevent replace, or a default timeout."""
    status, lines, errors = run_file(torch_alone, tmp_path, program + CLIENTS)

    assert "" == errors
    assert (0, ["fork 64", "forkserver 64", "12 4"]) == (status, lines)


FOREIGN = """
import os, signal, threading, warnings

from shmloader import DataLoader
from shmloader.processes import proc, scheduling, watching

warnings.simplefilter("error")

if __name__ == "__main__":
    started = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (started[0].set(), started[1].wait()))
    thread.start()
    started[0].wait()
    print("threads", {thread.native_id, os.getpid()} <= set(proc.threads()))
    started[1].set()
    print("numbers", proc.has_our_numbers(), watching.start_time(2), scheduling.scheduled_ns(2))
    child = os.fork()
    if child == 0:
        signal.pause()
    print("runs", watching.is_running(child, None))
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    print("runs", watching.is_running(child, None))
    os.waitpid(child, 0)
    with DataLoader(range(64), 16, num_workers=2, multiprocessing_context="forkserver") as loader:
        for _ in range(2):
            iterator = iter(loader)
            count = sum(map(len, iterator))
            print(count, repr(iterator._running.processes.mother.server.unfit))
"""
UNSHARE = [shutil.which("unshare") or "unshare", "--fork", "--pid", "--kill-child"]


def may_unshare():
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not may_unshare(), reason="this user may make no namespace of pids")
def test_proc_of_another_namespace_is_not_believed(tmp_path):
    """Where /proc has other numbers, no process or thread is mistaken for another."""
    program = tmp_path / "program.py"
    program.write_text(FOREIGN)
    done = subprocess.run(
        [*UNSHARE, sys.executable, program],
        cwd=tmp_path,
        env={"PYTHONPATH": search_path(), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT_S,
    )

    assert "" == done.stderr
    expected = ["threads True", "numbers False None (0, 0)", "runs True", "runs False"]
    assert [*expected, "64 ''", "64 ''"] == done.stdout.splitlines()
