"""`shmloader top`, beside trainings that run, hang and end."""

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import ExitStack
from fcntl import ioctl
from unittest import mock

import pytest

from shmloader import DataLoader
from shmloader.cli import main
from shmloader.cli.attach.trainers import find, find_all
from shmloader.cli.command import CommandError
from shmloader.cli.top.verdicts import report_of
from shmloader.views import live
from tests.helpers.copies import Child
from tests.helpers.programs import LONGEST_WAIT_S, ROOT, search_path, wait_until
from tests.helpers.stage import play_file

LOOKS = 10

# The sample says when it is reached, and never comes.
HANGING = """
import sys, time
import torch
from torch.utils.data import Dataset
from shmloader import DataLoader

class Photos(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        if index == 4711:
            print("reached", flush=True)
            time.sleep(1000)
        return torch.zeros(8)

if __name__ == "__main__":
    options = {OPTIONS}
    for batch in DataLoader(Photos(), **options):
        pass
"""
ORDERS = {
    "in order": "dict(batch_size=16, num_workers=2)",
    "at random": "dict(batch_size=5, num_workers=3, shuffle=True, persistent_workers=True)",
}


def hanging(options):
    """Write a training that hangs on a sample."""
    return HANGING.replace("{OPTIONS}", options)


@pytest.fixture
def training(libraries, tmp_path):
    """A training that hangs on a sample."""
    with play_file(libraries, tmp_path, hanging(ORDERS["in order"])) as training:
        assert "reached" == training.line()
        yield training


def hung_in(training, after_s):
    """List the workers that have fetched a sample for so long."""
    with mock.patch.object(live, "HANGS_AFTER_S", after_s):
        return [worker for worker in find(training.pid).workers if worker.hangs]


# The command line, for which a sample hangs early.
HASTY = """
import sys
from shmloader.cli import main
from shmloader.views import live

live.HANGS_AFTER_S = 0.05
sys.exit(main())
"""


WIDE = {"COLUMNS": "300"}  # else those of the terminal in which the tests run


class Terminal:
    """A command in a terminal of its own, so wide that a line with pids of any length fits."""

    def __init__(self, *arguments):
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 300, 0, 0))
        self._screen = ours
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", HASTY, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "PYTHONPATH": search_path(), "TERM": "xterm-256color", **WIDE},
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._screen)

    def frames(self, count):
        """Read until so many looks were drawn, and return them without colours."""
        deadline = time.monotonic() + LONGEST_WAIT_S
        os.set_blocking(self._screen, False)
        while self.shown.count("Ctrl-C ends this") < count and time.monotonic() < deadline:
            try:
                self.shown += os.read(self._screen, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.01)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)
        return text.split("Ctrl-C ends this")[:count]


@pytest.mark.thorough
@pytest.mark.parametrize("options", ORDERS.values(), ids=ORDERS)
def test_a_hung_worker_is_named_at_every_look(libraries, tmp_path, options):
    """Each look names the worker that hangs, its process, and the index of the sample."""
    with play_file(libraries, tmp_path, hanging(options)) as training:
        assert "reached" == training.line()
        with Terminal("top", str(training.pid), "--interval", "0.1") as terminal:
            frames = terminal.frames(LOOKS)
            terminal.process.send_signal(signal.SIGINT)
            status = terminal.process.wait(LONGEST_WAIT_S)
        (hung,) = hung_in(training, 0.05)

    assert LOOKS == len(frames), terminal.shown
    line = re.compile(
        rf"worker {hung.worker}, process {hung.pid}, hangs: .* index 4711 of.* --pid {hung.pid}"
    )
    assert LOOKS == sum(bool(line.search(frame)) for frame in frames), frames[-1]
    assert (0, 4711) == (status, hung.index)


SLOW_THEN_HANGING = (
    HANGING.replace("        return torch", "        time.sleep(0.002)\n        return torch")
    .replace("        pass", "        time.sleep(0.001)")
    .replace("4711", "1500")
)


@pytest.mark.thorough
def test_a_hang_comes_first_and_alone(libraries, tmp_path, capsys, monkeypatch):
    """While a worker hangs no option is advised, and its line is the first below its loader."""
    options = "dict(batch_size=16, num_workers=1)"
    script = SLOW_THEN_HANGING.replace("{OPTIONS}", options)
    with play_file(libraries, tmp_path, script) as training:
        assert "reached" == training.line()
        (seen,) = find(training.pid).loaders
        advice = report_of(seen).advice
        assert wait_until(lambda: hung_in(training, 0.2))
        monkeypatch.setattr(live, "HANGS_AFTER_S", 0.2)
        main(["top", str(training.pid), "--once"])
        lines = capsys.readouterr().out.splitlines()
        main(["top", str(training.pid), "--once", "--json"])
        record = json.loads(capsys.readouterr().out)["trainers"][0]["loaders"][0]

    assert advice  # which would be shown
    (loader,) = [number for number, line in enumerate(lines) if line.startswith("  loader ")]
    assert re.match("    worker 0, process .* hangs: .* index 1500 ", lines[loader + 1])
    assert not any(name in line for name in advice for line in lines)
    assert "set " not in (record["verdict"] or "")


@pytest.mark.thorough
def test_a_training_that_ends(training):
    """`top` ends with its training, says so, and exits with 0."""
    command = [sys.executable, "-m", "shmloader", "top", "--interval", "0.05"]
    with subprocess.Popen(
        [*command, str(training.pid)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as top:
        first = [top.stdout.readline() for _ in range(2)]
        training.send_to_all(signal.SIGKILL)
        rest = top.stdout.read().splitlines()
    training.wait()
    with pytest.raises(CommandError, match=f"there is no process {training.pid}"):
        find(training.pid)

    assert first[0].startswith("---")
    assert first[1].startswith(f"process {training.pid} ")
    assert f"process {training.pid} has ended" == rest[-1]
    assert 0 == top.returncode


SEVERAL = """
import time
from shmloader import DataLoader

if __name__ == "__main__":
    first = DataLoader(range(40), 4, num_workers=1)
    second = DataLoader(range(10), 1, num_workers=2, persistent_workers=True)
    list(second)
    list(second)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    print("ready", flush=True)
    time.sleep(1000)
"""


@pytest.mark.thorough
def test_several_trainings_loaders_and_epochs(libraries, tmp_path):
    """All trainings of the user are found, each with its loaders, epochs and batches."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        trainings = [stack.enter_context(play_file(libraries, each, SEVERAL)) for each in folders]
        assert ["ready", "ready"] == [each.line() for each in trainings]
        trainers = {each.process.pid: each for each in find_all()[0]}
    for pid in (each.pid for each in trainings):
        # Of the second loader, which was iterated first, the epochs are over.
        found = [(each.epoch, each.batch, each.length) for each in trainers[pid].loaders]
        assert [(1, 3, 10), (2, 10, 10)] == found
        assert [1, 2] == [len(each.workers) for each in trainers[pid].loaders]
        assert "stepping" == trainers[pid].loaders[0].trainer


def test_workers_and_children_are_no_trainers():
    """A worker, and any process without loaders, is told from a training."""
    with DataLoader(range(64), 4, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        worker = iterator._workers[0].pid
        with pytest.raises(CommandError, match="has no shmloader loader"):
            find(worker)
        assert worker not in {each.process.pid for each in find_all()[0]}
    with (
        subprocess.Popen(["sleep", "60"]) as sleeping,
        pytest.raises(CommandError, match="has no shmloader loader"),
    ):
        try:
            find(sleeping.pid)
        finally:
            sleeping.kill()


@pytest.mark.parametrize("backing", ["memfd", "posix"])
def test_both_kinds_of_segments_are_found(monkeypatch, backing):
    """A segment is found by what it says, whatever kind of shared memory it is."""
    if backing == "posix":
        pytest.importorskip("posix_ipc")
    monkeypatch.setenv("SHMLOADER_BACKING", backing)
    with DataLoader(range(64), 4, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        found = [each.loader for each in find(os.getpid()).loaders]

        assert loader._service.pool.number in found


def seen_here():
    """List the numbers of the loaders that are seen of this process."""
    try:
        return [each.loader for each in find(os.getpid()).loaders]
    except CommandError:  # there is none
        return []


def test_batches_that_are_made_while_the_trainer_is_elsewhere():
    """They are counted at each look, though the trainer has not looked at them."""
    with DataLoader(range(400), 4, num_workers=2, prefetch_factor=6) as loader:
        iterator = iter(loader)
        next(iterator)
        number = loader._service.pool.number
        found, deadline = None, time.monotonic() + 20
        while (found is None or found.made < found.ahead) and time.monotonic() < deadline:
            (found,) = [each for each in find(os.getpid()).loaders if each.loader == number]
            assert 0 <= found.made <= found.ahead
        assert (12, 12) == (found.ahead, found.made)
        assert found.slots["ready"] <= 6  # the other worker's, if they came before the first
        for _ in iterator:
            pass
        (found,) = [each for each in find(os.getpid()).loaders if each.loader == number]
        assert (0, 0, 100) == (found.ahead, found.made, found.batch)


def test_a_loader_between_epochs_and_a_closed_one():
    """A loader is found between two epochs, and not after close()."""
    with DataLoader(range(8), 4, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        number = loader._service.pool.number
        (found,) = [each for each in find(os.getpid()).loaders if each.loader == number]
        assert ("idle", "between", 2, 2) == (found.state, found.trainer, found.batch, found.length)
    assert number not in seen_here()


def test_processes_of_other_users():
    """Another user's training is not looked at, and it is said what to do."""
    pid = os.getpid() if os.geteuid() == 0 else 1

    def look():
        if os.geteuid() == 0:
            os.setuid(65534)
        with pytest.raises(CommandError) as raised:
            find(pid)
        return str(raised.value)

    expected = f"the kernel does not allow inspecting process {pid}: run this command as"
    assert expected in Child(look).end()


def test_a_killed_worker_is_gone(training):
    """A worker whose process has ended is not shown as if it still worked."""
    (hung,) = hung_in(training, 0.001)
    training.send(signal.SIGSTOP)  # so that it does not end of its worker's death
    os.kill(hung.pid, signal.SIGKILL)

    def worker():
        with mock.patch.object(live, "HANGS_AFTER_S", 0.001):
            (loader,) = find(training.pid).loaders
        return loader.workers[hung.worker]

    assert wait_until(lambda: worker().state == "gone")
    assert not worker().hangs


@pytest.mark.thorough
def test_what_is_stopped_is_said_to_be(training, capsys):
    """A process that a signal stopped waits for nothing, and its sample does not hang."""
    (hung,) = hung_in(training, 0.001)
    os.kill(hung.pid, signal.SIGSTOP)
    assert wait_until(lambda: not hung_in(training, 0.001))
    one = find(training.pid).loaders[0].workers[hung.worker]
    training.send(signal.SIGSTOP)
    assert wait_until(lambda: find(training.pid).is_stopped)
    main(["top", str(training.pid), "--once"])
    text = capsys.readouterr().out
    main(["top", str(training.pid), "--once", "--json"])
    record = json.loads(capsys.readouterr().out)["trainers"][0]

    assert ("stopped", 4711) == (one.state, one.index)
    assert f"it was stopped by a signal, as by Ctrl-Z: kill -CONT {training.pid}" in text
    assert f"worker {hung.worker} was stopped by a signal" in text
    assert (True, None) == (record["is_stopped"], record["loaders"][0]["verdict"])


def keys_in_docs(name):
    """List the keys of an object of `top --json` that docs/tuning.md names."""
    text = (ROOT / "docs" / "tuning.md").read_text()
    (row,) = re.findall(rf"^\| {name} \| (.*) \|$", text, re.MULTILINE)
    return re.findall(r"`(\w+)`", row)


def test_keys_of_json_are_documented(capsys):
    """`top --json` has the keys that docs/tuning.md lists, in that order."""
    with DataLoader(range(64), 4, num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        status = main(["top", str(os.getpid()), "--once", "--json"])
        (line,) = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    (trainer,) = record["trainers"]
    shown = [each for each in trainer["loaders"] if each["loader"] == loader._service.pool.number]

    assert 0 == status
    assert ["trainers"] == [*record]
    assert keys_in_docs("training process") == [*trainer]
    assert keys_in_docs("loader") == [*shown[0]]
    assert keys_in_docs("worker") == [*shown[0]["workers"][0]]
    assert os.getpid() == trainer["pid"]
    assert 2 == len(shown[0]["workers"])


def test_a_look_leaves_nothing():
    """After a look, no segment is open that was not open before, and none has more pages."""
    with DataLoader(range(64), 4, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        descriptor = loader._iterator._running.segment.descriptor
        before = os.listdir("/proc/self/fd"), os.fstat(descriptor).st_blocks
        assert [] != list(find(os.getpid()).loaders)
        find_all()
        assert before == (os.listdir("/proc/self/fd"), os.fstat(descriptor).st_blocks)
