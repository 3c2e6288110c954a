"""
Programs that begin with everything imported: one process imports, and forks each of them.

To its own processes such a program looks like any other. It is the leader of a session, its script
runs at the top level of `__main__`, and it ends as the interpreter ends.

What was imported is out of the collector's sight, because the collections at a program's end would
read all of it, and take longer than everything else that such a program does.
"""

import functools
import os
import select
import socket
import struct
import subprocess
import sys

import pytest

from tests.helpers.programs import Program, search_path, send

# What follows a head in the file that a stage runs. In the child serve() returns, with a script.
SERVE = """

def serve(connection, is_frozen):
    import gc, os, socket, struct
    if is_frozen:
        gc.collect()
        gc.freeze()
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, 9, 2)
        if not request:
            os._exit(0)
        verb, turn, number = struct.unpack("!cii", request)
        if verb == b"w":
            status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
            connection.sendall(struct.pack("!ii", turn, status))
            continue
        script = b""
        while len(script) < number:
            script += connection.recv(number - len(script))
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for descriptor, standard in zip(descriptors, (1, 2)):
                os.dup2(descriptor, standard)
                os.close(descriptor)
            connection.close()
            return script.decode()
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(struct.pack("!ii", turn, pid))


if __name__ == "__main__":
    import socket, sys
    connection, is_frozen = socket.socket(fileno=int(sys.argv[1])), sys.argv[2] == "True"
    exec(compile(serve(connection, is_frozen), "program.py", "exec"))
"""


class Stage:
    """
    A process that has run a head and forks programs on request, one at a time.

    Args:
        folder: Where its file is kept.
        head: The common beginning of its programs: imports, classes, functions.
        flags: Of the interpreter.
        is_frozen: Collections, the last one too, do not see the head and what it has imported. So
            a script's global names, which lie beside the head's, are not freed at its end, unless
            it is `as_file`; False for tests of that end.
    """

    def __init__(self, folder, head, *flags, is_frozen=True):
        path = folder / "stage.py"
        path.write_text(head + SERVE)
        self._turn = 0
        self.connection, far_end = socket.socketpair()
        with far_end:
            self._process = subprocess.Popen(
                [sys.executable, *flags, str(path), str(far_end.fileno()), str(is_frozen)],
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": search_path()},
                pass_fds=[far_end.fileno()],
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.shutdown(socket.SHUT_RDWR)  # also for children that still hold it
        self.connection.close()
        self._process.wait()

    def fork(self, script, stdout, stderr):
        """Start a program and return its pid."""
        self.ask(b"f", len(script), [stdout, stderr])
        self.connection.sendall(script)
        return self.answer()

    def ask(self, verb, number, descriptors=()):
        """Ask the process for something."""
        self._turn += 1
        request = struct.pack("!cii", verb, self._turn, number)
        socket.send_fds(self.connection, [request], descriptors)

    def answer(self):
        """Return the number that answers what was asked last; tests that time out read none."""
        turn = None
        while turn != self._turn:
            turn, number = struct.unpack("!ii", self.connection.recv(8))
        return number


# What takes long to import, for programs that import the rest by themselves.
TORCH = "import numpy, torch, torch.multiprocessing, torch.utils.data"
LIBRARIES = f"{TORCH}, shmloader; shmloader.DataLoader, shmloader.Pool"


def as_file(path, **environment):
    """
    Returns the text of a program that runs a file as Python does, in an empty `__main__`.

    Workers that are spawned find it, and at the end all that it refers to is freed.

    Args:
        environment: Variables on top of the stage's own.
    """
    return f"""
import os, sys, types
os.environ.update({environment!r})
os.chdir({str(path.parent)!r})
sys.path[0], sys.argv = {str(path.parent)!r}, [{str(path)!r}]
sys.modules["__main__"] = types.ModuleType("__main__")
sys.modules["__main__"].__file__ = __file__ = {str(path)!r}
with open(__file__) as file:
    code = compile(file.read(), __file__, "exec")
exec(code, vars(sys.modules["__main__"]))  # no other name may refer to it at the end
"""


class Play(Program):
    """
    A program on a stage; it is used like one that was started by itself.

    Args:
        folder: Where its stderr is kept.
    """

    def __init__(self, stage, folder, script):
        self._errors = folder / "stderr.txt"
        self._unread = b""
        reader, writer = os.pipe()
        with open(self._errors, "wb") as errors, open(writer, "wb") as stdout:
            self.pid = stage.fork(script.encode(), stdout.fileno(), errors.fileno())
        self._process = _Child(stage, self.pid, os.fdopen(reader, "rb", buffering=0))


class _Child:
    # What Program uses of a subprocess.Popen.

    def __init__(self, stage, pid, stdout):
        self._stage = stage
        self._pid = pid
        self._asked = False
        self._status = None
        self.stdout = stdout

    def send_signal(self, number):
        send(self._pid, number)

    def wait(self, timeout=None):
        if self._status is None:
            self._ask()
            if not select.select([self._stage.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("program.py", timeout)
            self._status = self._stage.answer()
        return self._status

    def _ask(self):
        if not self._asked:
            self._asked = True
            self._stage.ask(b"w", self._pid)


def staged(head, *flags, scope="module", **more):
    """Make a fixture: the stage from which all programs with a head are forked."""

    @pytest.fixture(scope=scope)
    def stage(tmp_path_factory):
        with Stage(tmp_path_factory.mktemp("stage"), head, *flags, **more) as stage:
            yield stage

    return stage


# For programs that are files: with all that takes long to import, and without this package.
libraries = staged(LIBRARIES, scope="session")
torch_alone = staged(TORCH, scope="session")


@pytest.fixture
def run_program(libraries, tmp_path):
    """Returns `run_file` on that stage, in the test's folder."""
    return functools.partial(run_file, libraries, tmp_path)


def play_file(stage, folder, script, **environment):
    """Start a script as a file on a stage; it is used as `programs.Program`."""
    path = folder / "program.py"
    path.write_text(script)
    return Play(stage, folder, as_file(path, **environment))


def run_file(stage, folder, script, **environment):
    """Run a script as a file on a stage to its end; returns what `programs.run` does."""
    with play_file(stage, folder, script, **environment) as play:
        status = play.wait()
        return status, play.lines(), play.errors
