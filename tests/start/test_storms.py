"""Any process that serves a loader is killed every 0.2 s: the bits of an undisturbed run."""

import contextlib
import os
import random
import signal
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest

from shmloader import DataLoader, RestartWarning
from shmloader.processes.servers import servers
from tests.helpers.belongings import process_table
from tests.helpers.healing import open_loader, undisturbed
from tests.helpers.mortal import Mortal, Script

PERIOD_S = 0.2


class Slow(Mortal):
    """Samples that take long enough for several kills in an epoch; notes who has made one."""

    pause_s = 0.02

    def __getitem__(self, index):
        Path(self.script.folder, f"serving {os.getpid()}").touch()
        time.sleep(self.pause_s)
        return super().__getitem__(index)


class Storm:
    """
    Kills one process of an iterator at a time, until it is left.

    It spares what still imports: nothing that imports for a second lives through five kills of it.
    """

    def __init__(self, iterator, folder, seed):
        self.iterator = iterator
        self.folder = folder
        self.random = random.Random(seed)
        self.killed = Counter()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.rage)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def rage(self):
        while not self.ended.wait(PERIOD_S):
            table = process_table().items()
            group = {pid for pid, each in table if each.alive and each.group == os.getpgrp()}
            ready = {each.process.pid for each in servers.processes() if each.doing is None}
            workers = {each.ident for each in self.iterator._workers}
            if not servers.processes():  # workers import, each by itself
                workers = {pid for pid in workers if (self.folder / f"serving {pid}").exists()}
            # A server dies less often than it takes to import, several times over.
            of_server = servers.processes() and self.random.random() < 0.08
            alive = sorted(group & (ready if of_server else workers))
            for pid in self.random.sample(alive, min(1, len(alive))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.killed["server" if pid in ready else "worker"] += 1


WAYS = {
    "forkserver": {"multiprocessing_context": "forkserver"},
    "spawn": {"multiprocessing_context": "spawn"},
}


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_storm_that_spares_no_child(tmp_path, way, seeded):
    """Workers and servers die in any order; a nursery's storm is the soak."""
    # Spawned, each replacement imports torch before it serves: half of the deaths will do.
    dataset = Slow(Script(tmp_path), count=45 if way == "spawn" else 90)
    (expected,) = undisturbed(dataset)
    servers.close()
    with (
        open_loader(DataLoader, dataset, restarts=10**6, **WAYS[way]) as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RestartWarning)
        iterator = iter(loader)
        actual = [next(iterator).tolist()]
        with Storm(iterator, tmp_path, seeded) as storm:
            actual += [batch.tolist() for batch in iterator]
        restarts = loader.stats().restarts
    servers.close()

    assert expected == actual, seeded
    assert storm.killed["worker"] > 0
    assert way != "spawn" or not storm.killed["server"]
    assert restarts > 0
