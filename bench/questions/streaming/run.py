"""One row: a loader's epochs, in its own process, so that what it writes at its end is seen."""

import multiprocessing
import time
import zlib
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import Dataset

from bench.loaders import LOADERS
from bench.loads.jpegs import DISTINCT, Get, decoded_jpegs, pictures
from bench.real.trainings.jpegs import cnn

BATCH = 32
_DOWNLOADERS = 8


@dataclass(frozen=True)
class Row:
    """
    What is run.

    Attributes:
        loader: "ours" or "torch".
        workers: 0: "auto".
        downloads: All pictures at first, with eight processes; then they come from the disk.
        epochs: How many.
        port, latency_ms: Of the server.
        count: Pictures of an epoch.
        folder: For downloads.
    """

    loader: str
    workers: int
    prefetch: int = 2
    threads: int = 0
    downloads: bool = False
    epochs: int = 1
    port: int = 0
    latency_ms: float = 0.0
    count: int = 0
    folder: str = ""


def run(row: Row) -> dict:
    """Return the seconds and checksums of each epoch."""
    net = cnn().eval()  # takes some milliseconds for a batch
    _look_at(net, torch.zeros(BATCH, 224, 224, 3, dtype=torch.uint8))  # torch's own first time
    begin = time.perf_counter()
    get = _getter(row, Get(row.port, row.latency_ms), row.count, Path(row.folder))
    download_s = time.perf_counter() - begin
    with closing(_loader(row, pictures(row.count, get))) as loader:
        epochs = [_epoch(loader, net) for _ in range(row.epochs)]
    return {"download_s": download_s, "epochs": epochs}


def right_checksums(count: int) -> list[int]:
    """Compute what a plain loop has, without a server or a loader."""
    decoded = decoded_jpegs()
    batches = torch.arange(count).split(BATCH)
    return [_checksum(decoded[numbers % DISTINCT], numbers) for numbers in batches]


def _checksum(batch: torch.Tensor, numbers: torch.Tensor) -> int:
    return zlib.crc32(numbers.numpy(), zlib.crc32(batch.numpy()))


def _look_at(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return net(batch.permute(0, 3, 1, 2) / 255).argmax(1)


def _getter(row: Row, get: Get, count: int, folder: Path):
    if not row.downloads:
        return get
    with multiprocessing.get_context("fork").Pool(_DOWNLOADERS) as pool:
        pool.map(partial(_save, get, folder), range(count), chunksize=16)
    return lambda number: _path_of(folder, number).read_bytes()


def _save(get: Get, folder: Path, number: int) -> None:
    _path_of(folder, number).write_bytes(get(number))


def _path_of(folder: Path, number: int) -> Path:
    return folder / f"{number}.jpg"


def _loader(row: Row, dataset: Dataset):
    options = {"num_workers": row.workers or "auto", "prefetch_factor": row.prefetch}
    options |= {"fetch_threads": row.threads} if row.loader == "ours" else {}
    return LOADERS[row.loader](dataset, batch_size=BATCH, persistent_workers=True, **options)


def _epoch(loader, net: torch.nn.Module) -> dict:
    """Take the time from iter() to the end; a checksum costs less than a millisecond."""
    begin = time.perf_counter()
    checksums = []
    for batch, numbers in loader:
        _look_at(net, batch)
        checksums.append(_checksum(batch, numbers))
    return {"seconds": time.perf_counter() - begin, "checksums": checksums}
