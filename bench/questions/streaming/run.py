"""
One row: a loader's epochs, in a process of its own, so that what it writes at its end is seen.

    python -m bench.questions.streaming '{"port": ..., "loader": "ours", ...}'

prints a JSON line: seconds and checksums of each epoch.
"""

import json
import multiprocessing
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader as TorchLoader

from bench.questions.streaming.pictures import BATCH, Get, Pictures, checksum, look_at, small_net
from shmloader import DataLoader, downloaded

_DOWNLOADERS = 8


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        name: How the table calls it.
        loader: "ours" or "torch".
        downloads: "first": all pictures with eight processes, then from disk; "kept": `downloaded`.
        epochs: How many.
        overlaps: Requests of the next epoch are sent at the end of each.
    """

    name: str
    loader: str
    workers: int
    prefetch: int = 2
    threads: int | str = 0
    downloads: str = ""
    epochs: int = 1
    overlaps: bool = False

    @property
    def in_flight(self) -> int | None:
        """How many requests may be on their way at once; None: the loader finds out, or none."""
        if self.threads == "auto" or self.downloads:
            return None
        # More threads than samples that a worker holds have nothing to do.
        held = self.prefetch * BATCH
        return self.workers * max(1, min(int(self.threads), held))


def command(row: Row, port: int, latency_ms: float, count: int, folder: Path) -> list[str]:
    """Say how to run a row."""
    spec = {**asdict(row), "port": port, "latency_ms": latency_ms, "count": count}
    text = json.dumps({**spec, "folder": str(folder)})
    return [sys.executable, "-m", "bench.questions.streaming", text]


def main(text: str) -> None:
    """Run what a command says."""
    spec = json.loads(text)
    torch.set_num_threads(1)
    where = (spec.pop("port"), spec.pop("latency_ms"))
    count, folder = spec.pop("count"), Path(spec.pop("folder"))
    row = Row(**spec)
    net = small_net()
    look_at(net, [torch.zeros(BATCH, 224, 224, 3, dtype=torch.uint8)])  # torch's own first time
    begin = time.perf_counter()
    get = _getter(row, Get(*where), count, folder)
    download_s = time.perf_counter() - begin
    loader = _loader(row, Pictures(get, count))
    epochs = [_epoch(loader, net) for _ in range(row.epochs)]
    print(json.dumps({"download_s": download_s, "epochs": epochs}))


def _getter(row: Row, get: Get, count: int, folder: Path):
    if row.downloads == "kept":
        return downloaded(get, folder, 1 << 30)
    if row.downloads == "first":
        with multiprocessing.get_context("fork").Pool(_DOWNLOADERS) as pool:
            pool.map(_Save(get, folder), range(count), chunksize=16)
        return _Read(folder)
    return get


class _Save:
    """Writes a picture to a file."""

    def __init__(self, get: Get, folder: Path):
        self._get, self._folder = get, folder

    def __call__(self, number: int) -> None:
        (self._folder / f"{number}.jpg").write_bytes(self._get(number))


class _Read:
    """Reads it."""

    def __init__(self, folder: Path):
        self._folder = folder

    def __call__(self, number: int) -> bytes:
        return (self._folder / f"{number}.jpg").read_bytes()


def _loader(row: Row, dataset: Pictures):
    options = {
        "batch_size": BATCH,
        "num_workers": row.workers,
        "prefetch_factor": row.prefetch,
        "persistent_workers": True,
    }
    if row.loader == "torch":
        return TorchLoader(dataset, **options)
    if row.overlaps:
        options |= {"overlap_epochs": True, "seed_by": "batch"}
    return DataLoader(dataset, **options, fetch_threads=row.threads)


def _epoch(loader, net: torch.nn.Module) -> dict:
    """Take the time from iter() to the end; a checksum costs less than a millisecond."""
    begin = time.perf_counter()
    checksums = []
    for batch in loader:
        look_at(net, batch)
        checksums.append(checksum(batch))
    return {"seconds": time.perf_counter() - begin, "checksums": checksums}
