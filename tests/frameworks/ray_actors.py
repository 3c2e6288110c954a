"""
Loaders in actors of Ray: `ray_actors.py FOLDER`; what came out is written to the folder, as JSON.

"trained" has the losses for each start method, "killed" what was left when an actor was killed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch

from tests.frameworks.ray_sessions import start
from tests.frameworks.training import WORKERS, Pictures, plain, seed
from tests.frameworks.ways import IMPORT, TORCH, Way, spied
from tests.helpers.programs import wait_until

METHODS = ("fork", "forkserver", "spawn")


@ray.remote(num_cpus=1)
class Trainer:
    """Trains in its process, or stays in the middle of an epoch."""

    def train(self, name: str, method: str) -> dict[str, Any]:
        torch.set_num_threads(1)
        way: Way = {"torch": TORCH, "import": IMPORT}[name]
        seed()
        with spied() as made:
            loader = way.loader(Pictures(), multiprocessing_context=method, **WORKERS)
            losses = plain(loader, epochs=1)
        return {"losses": losses, "ours": made.ours, "torchs": made.torchs}

    def begin(self, method: str) -> list[int]:
        """Take two batches of an epoch and keep them. Returns the pids of all processes."""
        options = {"multiprocessing_context": method, "restarts": 2, **WORKERS}
        self.iterator = iter(IMPORT.loader(Pictures(), **options))
        self.kept = list(itertools.islice(self.iterator, 2))
        return [os.getpid(), *descendants(os.getpid())]


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one, each before those below it."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            yield child
            yield from descendants(child)


def living(pids: list[int]) -> list[int]:
    """List the processes that run still; a zombie does not."""
    return [pid for pid in pids if state_of(pid) not in "ZX"]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def killed(method: str) -> dict[str, Any]:
    """Kill an actor within an epoch. Returns how many processes it had, and what is left."""
    before = {*os.listdir("/dev/shm")}
    actor = Trainer.remote()
    pids = ray.get(actor.begin.remote(method))
    ray.kill(actor)
    wait_until(lambda: not living(pids))
    files = sorted({*os.listdir("/dev/shm")} - before)
    return {"processes": len(pids), "left": len(living(pids)), "files": files}


def main(folder: str) -> None:
    start()
    actor = Trainer.remote()
    trained = {"torch": ray.get(actor.train.remote("torch", "fork"))}
    for method in METHODS:
        trained[method] = ray.get(actor.train.remote("import", method))
    left = {method: killed(method) for method in ("fork", "forkserver")}
    ray.shutdown()
    Path(folder, "outcome.json").write_text(json.dumps({"trained": trained, "killed": left}))


if __name__ == "__main__":
    main(*sys.argv[1:])
