"""
One contender on one workload, in a process of its own.

    python -m bench.driver bench.run '{"workload": "imagenet", "contender": "ours"}'
"""

import os
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import contenders
from bench.driver import tried
from bench.loads.pools import Workload, workload
from bench.measure import measure
from bench.report import machine

CONTEXTS = ("fork", "spawn", "forkserver")

_RUN_S = 300  # a run that takes longer has failed


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        epochs: Timed ones, after the warm-up.
        batches: Of an epoch; None: as many as the workload has.
        context: How workers are started.
        restart: Workers are started anew in every epoch.
    """

    workload: str
    contender: str
    workers: int = 2
    epochs: int = 5
    batches: int | None = None
    context: str = "fork"
    restart: bool = False


def run(row: Row) -> dict:
    """Measure what the row names and return the record."""
    contender = contenders.load(row.contender)
    reason = contenders.why_not(contender)
    if reason:
        sys.exit(f"{row.contender}: {reason}")
    chosen = workload(row.workload, row.batches)
    refused = contender.refuses(chosen) if hasattr(contender, "refuses") else None
    # A refusal has no figures: nothing was wrong, because nothing was delivered.
    refusal = {"correct": True, "mistake": None, "refused": refused}
    return {
        "workload": row.workload,
        "contender": row.contender,
        "label": contender.label,
        "workers": row.workers,
        "persistent": not row.restart,
        "context": row.context,
        "epochs": row.epochs,
        **(refusal if refused else _measured(contender, chosen, row)),
    }


def _measured(contender, chosen: Workload, row: Row) -> dict:
    if hasattr(contender, "measure"):
        return contender.measure(chosen, row.workers, row.epochs)
    return measure(contender, chosen, row.workers, row.epochs, not row.restart, row.context)


def alone(row: Row, checkout: Path | None = None) -> dict:
    """Run a row in a process of its own; a failure is a record too."""
    with shmloader_of(checkout) as variables:
        found = tried(row, _RUN_S, **variables)
    return {"workload": row.workload, "contender": row.contender, **found}


@contextmanager
def shmloader_of(checkout: Path | None) -> Iterator[dict[str, str]]:
    """Give the variables with which a child imports another checkout's shmloader, and our bench."""
    if checkout is None:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shmloader").symlink_to(checkout.resolve() / "shmloader")
        # Safe path: otherwise the current folder, which has this checkout's, comes first.
        path = os.pathsep.join([folder, str(machine.CHECKOUT)])
        yield {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _built(text: str) -> Path:
    if not any(Path(text).glob("shmloader/**/_core*.so")):
        raise ArgumentTypeError(f"no shmloader is built in {text}")
    return Path(text)


BEFORE: dict[str, Any] = {
    "type": _built, "metavar": "CHECKOUT", "help": "run its shmloader in turns, built there"
}  # fmt: skip
