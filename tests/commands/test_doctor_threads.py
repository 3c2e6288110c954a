"""`shmloader doctor --threads`: datasets that are safe for threads, and those that are not."""

import json
import os
import random
import re
import threading
import time

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from shmloader.cli import main
from shmloader.cli.command import CommandError
from shmloader.cli.doctor.threads import bits_of, compare_threads
from tests.helpers.datasets import Computed, Iterated

LENGTH, COUNT = 4000, 64


class Handle:
    """An open file, closed with the object."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDONLY)

    def __del__(self):
        os.close(self.file)

    def read(self, place):
        os.lseek(self.file, place, os.SEEK_SET)
        time.sleep(1e-4)
        return os.read(self.file, LENGTH)


class OneFile(Dataset):
    """Samples are parts of a file that all threads read through one handle."""

    def __init__(self, path):
        self.path = path
        self.made = Handle(path)

    def handle(self):
        return self.made

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        read = self.handle().read(index * LENGTH)
        return torch.frombuffer(bytearray(read), dtype=torch.uint8), index


class FileOfEachThread(OneFile):
    """The same with a handle for each thread."""

    def __init__(self, path):
        super().__init__(path)
        self.here = threading.local()

    def handle(self):
        if not hasattr(self.here, "handle"):
            self.here.handle = Handle(self.path)
        return self.here.handle


class OneFileAtOnce(OneFile):
    """The shared handle, for lists of indices."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"".join(bytes([number]) * LENGTH for number in range(COUNT)))
    return path


@pytest.mark.parametrize("kind", [OneFile, OneFileAtOnce])
def test_a_shared_handle_is_found(path, kind):
    """The finding is a problem that names an index."""
    finding = compare_threads(kind(path))

    assert "problem" == finding.verdict
    assert re.match(r"the sample of index .* differs with \d+ threads", finding.fact)
    assert "threading.local()" in finding.remedy


@pytest.mark.thorough
@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: DataLoader(dataset, 4)])
def test_a_handle_for_each_thread_is_right(path, wrap):
    """A dataset that is safe is found safe, also inside of a loader."""
    finding = compare_threads(wrap(FileOfEachThread(path)))

    assert ("ok", f"{COUNT} fetches gave the same bits with 1 and with up to 32 threads") == (
        finding.verdict,
        finding.fact,
    )


def test_samples_drawn_at_random_are_not_compared():
    """What differs with one thread too says nothing about threads."""
    finding = compare_threads(Computed(COUNT, lambda n: random.random() if n % 2 else n))

    assert "note" == finding.verdict
    assert "32 differ with one thread" in finding.fact


class Clock(list):
    def __getitem__(self, index):
        return time.monotonic_ns()


@pytest.mark.parametrize("made", [Iterated(lambda: range(3)), 5, [], None, Clock([1, 2])])
def test_what_cannot_be_compared_is_refused(made):
    """Iterable datasets, other objects, empty and random datasets have an error that says so."""
    with pytest.raises(CommandError):
        compare_threads(made)


@pytest.mark.parametrize(
    ("expected", "found", "is_same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.zeros(2), torch.zeros(3), False),
        (torch.zeros(2, 2), torch.zeros(4), False),
        (numpy.zeros(2), numpy.zeros(2, "f4"), False),
        ({"a": [1, 2]}, {"a": [1, 3]}, False),
        ({"a": 1}, {"b": 1}, False),
        ((1, 2), (1,), False),
        ((1, 2), [1, 2], False),
        (1, True, False),
        (b"x", ValueError("closed"), False),
        (ValueError("a"), ValueError("a"), True),
        (float("nan"), float("nan"), True),
    ],
)
def test_bits_are_compared(expected, found, is_same):
    """Every kind of difference is found: of values, types, shapes, containers and errors."""
    assert is_same == (bits_of(expected) == bits_of(found))


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "status"), [("OneFile", 1), ("FileOfEachThread", 0)])
def test_the_command_has_doctors_exit_codes(path, tmp_path, monkeypatch, capsys, kind, status):
    """1 for a problem, 0 otherwise; --json has the finding."""
    name = f"made_{os.getpid()}_{kind.lower()}"
    (tmp_path / f"{name}.py").write_text(
        "from tests.commands import test_doctor_threads as kinds\n"
        f"def make(): return kinds.{kind}({str(path)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert status == main(["doctor", "--json", "--threads", f"{name}:make"])
    told = json.loads(capsys.readouterr().out)
    assert (status, ["fetch threads"]) == (
        told["problems"],
        [finding["name"] for finding in told["findings"]],
    )
