"""
Programs that a test runs in a process of their own, so that it may kill them or see them crash.

A program is the text of a script. It is the leader of a session, and the session tells its
processes from all others, also once their parents are gone and whatever started them.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_WAIT_S = 30.0  # for a line of a program or its end; only a hang meets it
GONE_WITHIN_S = 2.0  # after the trainer's death nothing of it may be left


class Program:
    """
    A script that runs; leaving the context kills what is left of it.

    Args:
        folder: Where the script and what it writes to stderr are kept.
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
        # Those that nobody reaps here are reaped by the machine's first process, in its own time.
        wait_until(lambda: not members(self.pid), LONGEST_WAIT_S)

    def line(self):
        """
        Wait for the next line that the program prints.

        Raises:
            EOFError: It ended without one, or did not print one in time.
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
        """Wait for the program's end and return what it printed and nobody has read."""
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

    def left(self):
        """Return the processes that are left, once they had the time to go that they are given."""
        wait_until(lambda: not members(self.pid), GONE_WITHIN_S)
        return members(self.pid)

    @property
    def errors(self):
        """All that its processes have written to stderr so far."""
        return self._errors.read_text()


def search_path():
    """Return what PYTHONPATH says here with this folder's checkout before it."""
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


def members(session):
    """
    Return the living processes of a session by pid; one that has ended and waits to be reaped is
    not living.
    """
    return {
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if lives(pid, session)
    }


def lives(pid, session):
    """Tell whether a process of that session runs."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False
    state, _, _, its_session = stat.rpartition(")")[2].split()[:4]
    return int(its_session) == session and state not in "ZX"


def send(pid, number):
    """Send a signal to a process, which may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_until(condition, longest_s=LONGEST_WAIT_S):
    """Wait until a condition is true, and return whether it became true in time."""
    deadline = time.monotonic() + longest_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()
