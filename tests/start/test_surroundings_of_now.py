"""What the trainer has when a worker starts, the worker has too, by the same server or another."""

import pytest

from tests.helpers.programs import run

HEAD = """\
import os, resource, signal, sys
from torch.utils.data import DataLoader as TorchDataLoader
from shmloader import DataLoader
from shmloader.processes.servers import servers
from tests.start.looks import look


def serving():
    return {server.process.pid for server in servers.processes()}


def differences():
    expected, actual = look(TorchDataLoader, "spawn"), look(DataLoader, "forkserver")
    return [name for name in expected if expected[name] != actual[name]]

"""


def printed(folder, script):
    status, lines, errors = run(folder, HEAD + script)
    assert (0, "") == (status, errors)
    return lines


@pytest.mark.thorough
def test_what_the_same_server_serves(tmp_path):
    """Folder, arguments, niceness, cores, blocked signals and standard files come with a birth."""
    script = """
if __name__ == "__main__":
    look(DataLoader, "forkserver")
    before = serving()
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
    print(before == serving())
"""
    assert ["below --more True", "typed errors", "name method", "True"] == printed(tmp_path, script)
