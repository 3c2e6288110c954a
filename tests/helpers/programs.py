"""
Programs that a test runs in a process of their own, so that it may kill them or see them crash.

A program is the text of a script. It is the leader of a session, and the session tells its
processes from all others, even when their parents are gone, however they were started.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LONGEST_WAIT_S = 100.0  # for a line of a program or its end; only a hang reaches it
GONE_WITHIN_S = 2.0  # after the trainer's death its processes must be gone within this time


class Program:
    """
    A running script; leaving the context kills what is left of it.

    Args:
        folder: Where the script and its stderr are kept.
        script: Its text; it may import `tests`.
        environment: Variables on top of this process's own.
    """

    def __init__(self, folder, script, **environment):
        path = folder / "program.py"
        path.write_text(script)
        self._errors = folder / "stderr.txt"
        self._unread = b""
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": search_path(), **environment},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in members(self.pid):
            send(pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        # Orphans are reaped by the machine's first process, in its own time.
        wait_until(lambda: not members(self.pid), LONGEST_WAIT_S)

    def line(self):
        """
        Wait for the next line that the program prints.

        Raises:
            EOFError: It ended, or printed no line in time.
        """
        deadline = time.monotonic() + LONGEST_WAIT_S
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left_s)
            piece = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                raise EOFError(f"no line: {self._unread!r}; stderr: {self.errors}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def lines(self):
        """Wait for the program's end and return its unread output."""
        self.wait()
        return (self._unread + self._process.stdout.read()).decode().splitlines()

    def send(self, number):
        """Send a signal to the program's first process."""
        self._process.send_signal(number)

    def send_to_all(self, number):
        """Send a signal to the program's process group, as a terminal does."""
        os.killpg(self.pid, number)

    def wait(self):
        """Wait for the end of the program's first process and return its exit status."""
        return self._process.wait(LONGEST_WAIT_S)

    def left_now(self):
        """Return the processes that are left now."""
        return members(self.pid)

    def left(self):
        """Return the processes that are left after the time that they have to leave."""
        wait_until(lambda: not members(self.pid), GONE_WITHIN_S)
        return members(self.pid)

    @property
    def errors(self):
        """All that its processes have written to stderr so far."""
        return self._errors.read_text()


def search_path():
    """Return this process's PYTHONPATH with this checkout before it."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def run(folder, script, **environment):
    """
    Run a script to its end.

    Returns:
        Its exit status, the lines it printed, and the text on stderr.
    """
    with Program(folder, script, **environment) as program:
        status = program.wait()
        return status, program.lines(), program.errors


@contextlib.contextmanager
def one_at_a_time(folder):
    """Have a folder that stays, such as a build's, to oneself: tests run in several processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Process(NamedTuple):
    """
    The kernel's record of a process: its parent's pid, its group's and session's, and True if it
    still runs, which a zombie does not.
    """

    parent: int
    group: int
    session: int
    alive: bool


def process_table() -> dict[int, Process]:
    """Read every process of the machine, by pid."""
    table = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # each test reads them all
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):  # it has just exited
            continue
        state, *numbers = stat.rpartition(b")")[2].split(maxsplit=4)[:4]
        table[int(pid)] = Process(*map(int, numbers), state not in b"ZX")
    return table


def members(session):
    """Return the living processes of a session by pid."""
    table = process_table()
    return {pid for pid, each in table.items() if each.session == session and each.alive}


def send(pid, number):
    """Send a signal to a process, which may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_until(condition, longest_s=LONGEST_WAIT_S):
    """Wait until a condition is true. Returns True if it became true in time."""
    deadline = time.monotonic() + longest_s
    while not (is_true := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_true
