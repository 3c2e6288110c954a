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
from functools import partial
from pathlib import Path
from typing import Any

from bench import contenders
from bench.loads.pools import workload as find
from bench.measure import measure
from bench.report import machine


def run(
    *,
    workload: str,
    contender: str,
    workers: int = 2,
    epochs: int = 5,
    batches: int | None = None,
) -> dict:
    """Measure a contender and return the record; batches: other than as many as there are."""
    way, chosen = contenders.contenders()[contender], find(workload, batches)
    reason, refused = way.available(), way.refuses(chosen)
    if reason:
        sys.exit(f"{contender}: {reason}")
    if refused:  # it has no figures: nothing was wrong, because nothing was delivered
        found = {"correct": True, "mistake": None, "refused": refused}
    elif way.measure:
        found = way.measure(chosen, workers, epochs)
    else:
        found = measure(partial(way.make_loader, chosen, workers), chosen, epochs)
    return {"label": way.label, **found}


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
