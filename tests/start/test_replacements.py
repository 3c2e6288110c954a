"""While a replacement starts, the trainer goes on with what the other workers give."""

import functools
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader
from shmloader.processes.servers import servers
from tests.helpers.programs import wait_until
from tests.helpers.warned import recorded

# Imported by a server: the second one waits until the test has seen enough.
GATED = """
import pathlib, time
folder = pathlib.Path({folder!r})
end_s = time.monotonic() + 30
while (folder / "died").exists() and not (folder / "go").exists() and time.monotonic() < end_s:
    time.sleep(0.005)
"""


def pass_gate(folder):
    """Once a worker has died, wait until the test lets its replacement go on."""
    if (folder / "died").exists():
        (folder / "at the gate").touch()
        assert wait_until((folder / "go").exists)


def pass_gate_and_note(folder, worker):
    # In this order: what has noted itself is not held at the gate by a death after its note.
    pass_gate(folder)
    (folder / f"worker {worker}").touch()


class Gated(Dataset):
    """Where a worker unpickles it there is a gate."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 40

    def __setstate__(self, state):
        self.__dict__.update(state)
        pass_gate(self.folder)

    def __getitem__(self, index):
        return torch.tensor(index)


WAYS = {
    "fork": {"multiprocessing_context": "fork"},
    "forkserver": {"multiprocessing_context": "forkserver"},
    "spawn": {"multiprocessing_context": "spawn"},
    "another server": {"multiprocessing_context": "forkserver", "preload": ("gated_import",)},
}


@pytest.fixture
def without_servers(tmp_path, monkeypatch):
    """Begin and end without a server, and have a module that may take long to import."""
    (tmp_path / "gated_import.py").write_text(GATED.format(folder=str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    servers.close()
    yield
    servers.close()
    sys.modules.pop("gated_import", None)


@pytest.mark.core(every=4)
@pytest.mark.parametrize("way", WAYS)
def test_next_does_not_wait_for_a_replacement(without_servers, tmp_path, way):
    """All batches of the other worker come before the replacement's process serves."""
    options = {"num_workers": 2, "in_order": False, "restarts": 1, **WAYS[way]}
    init = functools.partial(pass_gate_and_note, tmp_path)
    with recorded(), DataLoader(Gated(tmp_path), worker_init_fn=init, **options) as loader:
        iterator = iter(loader)
        assert wait_until(lambda: len([*tmp_path.glob("worker *")]) == 2)
        found = [int(next(iterator))]
        (tmp_path / "died").touch()
        if way == "another server":
            (server,) = servers.processes()
            os.kill(server.process.pid, signal.SIGKILL)
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        # The dead one had two batches to make at most.
        found += [int(next(iterator)) for _ in range(40 - 1 - 2)]
        (tmp_path / "go").touch()
        found += [int(batch) for batch in iterator]

        assert 1 == loader.stats().restarts
    assert list(range(40)) == sorted(found)
    assert way == "another server" or Path(tmp_path, "at the gate").exists()
