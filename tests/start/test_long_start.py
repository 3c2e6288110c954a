"""What is said of a start that takes long."""

import logging
import os
import time

import pytest
from torch.utils.data import Dataset

from shmloader import DataLoader
from shmloader.transport import waiting


class Late(Dataset):
    """The worker takes long to start, or its first sample to come."""

    late = (0,)

    def __init__(self, start_s=0.0, sample_s=0.0):
        self.start_s = start_s
        self.sample_s = sample_s

    def __len__(self):
        return 3

    def __setstate__(self, state):
        self.__dict__.update(state)
        time.sleep(self.start_s)

    def __getitem__(self, index):
        time.sleep(self.sample_s if index in self.late else 0)
        return index


class LateLater(Late):
    """Only later samples take long."""

    late = (1, 2)


def waits(worker):
    """Wait, as an init function may for all others."""
    time.sleep(1)


@pytest.fixture
def told(monkeypatch, caplog):
    """Returns the lines of level WARNING, which come after a fifth of a second."""
    monkeypatch.setattr(waiting, "_AFTER_S", 0.2)
    caplog.set_level(logging.WARNING, "shmloader")
    return lambda: [record.getMessage() for record in caplog.records]


IMPORTING = "0 of 1 workers have started; the others import modules"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("after_s", "dataset", "workers", "said"),
    [
        (0.2, Late(start_s=1.0), 1, IMPORTING),
        # On a busy machine a worker takes a while to start, of which nothing is to be said here.
        (2.0, Late(sample_s=2.5), 1, "1 of 1 workers have started; the first batch is fetched"),
        # A request for any worker is placed once a worker is there.
        (0.2, Late(start_s=1.0), "auto", IMPORTING),
    ],
    ids=["start", "sample", "auto"],
)
def test_late_first_batch(told, monkeypatch, after_s, dataset, workers, said):
    """One line says how many workers have started, and what is waited for."""
    options = {"multiprocessing_context": "forkserver", "num_workers": workers}
    if workers == "auto":
        options["max_workers"] = 1
    with DataLoader(Late(), **options) as loader:
        list(loader)  # the server has imported
    before = len(told())
    monkeypatch.setattr(waiting, "_AFTER_S", after_s)
    with DataLoader(dataset, **options) as loader:
        assert [0, 1, 2] == [int(batch) for batch in loader]

    (line,) = told()[before:]
    assert said in line


@pytest.mark.thorough
def test_server_that_imports(told, monkeypatch):
    """While the server imports, the line names the module."""
    monkeypatch.setenv("SHMLOADER_TEST_LONG_START", str(os.getpid()))
    with DataLoader(Late(), num_workers=1, multiprocessing_context="forkserver") as loader:
        list(loader)

    (line,) = told()
    assert "0 of 1 workers have started; importing " in line


def test_nothing_is_said_later(told):
    """Of a batch in the middle that is late nothing is said."""
    dataset = LateLater(sample_s=0.3)
    with DataLoader(dataset, num_workers=1, multiprocessing_context="fork") as loader:
        assert [0, 1, 2] == [int(batch) for batch in loader]

    assert [] == told()


@pytest.mark.thorough
def test_workers_that_wait_for_more_than_there_are(told):
    """With num_workers="auto" the line says how many began, and how many there may be."""
    with DataLoader(Late(), num_workers="auto", max_workers=3, worker_init_fn=waits) as loader:
        list(loader)
    assert "of 2 workers, of at most 3 have started" in told()[0]
