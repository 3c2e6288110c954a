"""One training with one loader, in a process of its own that imports shmloader for ours alone."""

import multiprocessing
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        training: A name of TRAININGS.
        loader: "ours" or "torch".
        steps: Of each of the two epochs.
        folder: Of the pictures.
        start: A key of STARTS.
    """

    training: str
    loader: str
    steps: int
    folder: str
    start: str


def run(row: Row) -> dict:
    """Train for an epoch in which memory is looked at, and for one by the clock."""
    method, options = STARTS[row.start]
    multiprocessing.set_start_method(method)
    if row.loader == "ours":
        import shmloader

        shmloader.install(**options)
    seed()
    training = trainings.make(row.training, Path(row.folder), row.steps)
    first, peak = peak_mb(training, row.steps)
    found = train(training)
    found["losses"] = [*first, *found["losses"]]
    stats = {}
    if row.loader == "ours":
        stats = asdict(shmloader.stats(training.loader))
        shmloader.close(training.loader)
    return {**found, "peak_mb": peak, "stats": stats}
