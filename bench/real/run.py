"""One training with one loader, in a process of its own that imports shmloader for ours alone."""

import multiprocessing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.real import trainings
from bench.real.training import peak_mb, seed, train

# How workers are started: the start method, and what of ours is said beside it.
STARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fork": ("fork", {}),
    "spawn": ("spawn", {}),
    "spawn+preload": ("spawn", {"preload": ("numpy",)}),
    "forkserver": ("forkserver", {}),
}


def run(training: str, loader: str, steps: int, folder: str, start: str) -> dict:
    """Train for an epoch in which memory is looked at, and for one by the clock."""
    method, options = STARTS[start]
    multiprocessing.set_start_method(method)
    if loader == "ours":
        import shmloader

        shmloader.install(**options)
    seed()
    made = trainings.make(training, Path(folder), steps)
    first, peak = peak_mb(made, steps)
    found = train(made)
    found["losses"] = [*first, *found["losses"]]
    stats = {}
    if loader == "ours":
        stats = asdict(shmloader.stats(made.loader))
        shmloader.close(made.loader)
    return {**found, "peak_mb": peak, "stats": stats}
