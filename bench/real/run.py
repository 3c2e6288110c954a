"""One training with one loader, in a process of its own that imports shmloader for ours alone."""

from dataclasses import asdict, dataclass
from pathlib import Path

from bench.real import trainings
from bench.real.training import peak_mb, seed, train


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        training: A name of TRAININGS.
        loader: "ours" or "torch".
        steps: Of each of the two epochs.
        folder: Of the pictures.
    """

    training: str
    loader: str
    steps: int
    folder: str


def run(row: Row) -> dict:
    """Train for an epoch in which memory is looked at, and for one by the clock."""
    if row.loader == "ours":
        import shmloader

        shmloader.install()
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
