"""
One run of a load in this process, which may be killed for its memory.

    python -m bench.questions.memory '{"load": "annotations", "loader": "ours", "cure": true}'

prints a JSON line with a digest of all batches. The memory is looked at from outside.
"""

import contextlib
import hashlib
import json
import sys
import time
import warnings
from dataclasses import asdict, dataclass

import torch
from torch.utils.data import DataLoader as TorchLoader

from bench.questions.memory.loads import LOADS
from shmloader import DataLoader

_LOADERS = {"ours": DataLoader, "torch": TorchLoader}


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        load: A name of LOADS.
        loader: "ours" or "torch".
        cure: With the load's cure.
        part: Of the load's samples.
        workers: Instead of the load's; None: as many.
    """

    load: str
    loader: str
    cure: bool
    part: float = 1.0
    workers: int | None = None


def command(row: Row) -> list[str]:
    """Say how to run a row."""
    return [sys.executable, "-m", "bench.questions.memory", json.dumps(asdict(row))]


def main(text: str) -> None:
    """Run what a command says."""
    warnings.simplefilter("ignore")  # more workers than cores, and a cache that is made smaller
    torch.set_num_threads(1)
    row = Row(**json.loads(text))
    load = LOADS[row.load]
    samples = int(load.samples * row.part)
    dataset = load.cured(samples) if row.cure else load.plain(samples)
    options = load.options | (load.ours if row.cure and row.loader == "ours" else {})
    loader = _LOADERS[row.loader](
        dataset,
        batch_size=load.batch,
        num_workers=row.workers or load.workers,
        generator=torch.Generator().manual_seed(1),
        **options,
    )
    begin = time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(load.epochs):
        for batch in loader:
            for leaf in batch if isinstance(batch, list) else [batch]:
                digest.update(leaf.numpy())
            time.sleep(load.step_s)
    seconds = time.perf_counter() - begin
    with contextlib.suppress(AttributeError):
        loader.close()
    print(json.dumps({"digest": digest.hexdigest(), "seconds": seconds}))
