"""One row: a loader's epochs, in its own process, so that what it writes at its end is seen."""

import multiprocessing
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from bench.loaders import opened
from bench.loads.jpegs import DISTINCT, Get, decoded_jpegs, pictures
from bench.real.trainings.jpegs import cnn

BATCH = 32
_DOWNLOADERS = 8


def run(
    loader: str,
    workers: int | str,
    *,
    prefetch: int = 2,
    threads: int = 0,
    folder: str = "",
    epochs: int = 1,
    port: int,
    latency_ms: float,
    count: int,
) -> dict:
    """
    Return the seconds and checksums of each epoch.

    Args:
        folder: For all pictures, downloaded at first; then they come from there.
        port, latency_ms: Of the server.
        count: Pictures of an epoch.
    """
    net = cnn().eval()  # takes some milliseconds for a batch
    _look_at(net, torch.zeros(BATCH, 224, 224, 3, dtype=torch.uint8))  # torch's own first time
    begin, get = time.perf_counter(), Get(port, latency_ms)
    dataset = pictures(count, _downloaded(get, count, Path(folder)) if folder else get)
    download_s = time.perf_counter() - begin
    options = {"num_workers": workers, "prefetch_factor": prefetch, "persistent_workers": True}
    options |= {"fetch_threads": threads} if loader == "ours" else {}
    with opened(loader, dataset, BATCH, **options) as loaded:
        return {"download_s": download_s, "epochs": [_epoch(loaded, net) for _ in range(epochs)]}


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


def _downloaded(get: Get, count: int, folder: Path) -> Callable[[int], bytes]:
    with multiprocessing.get_context("fork").Pool(_DOWNLOADERS) as pool:
        pool.map(partial(_save, get, folder), range(count), chunksize=16)
    return lambda number: _path_of(folder, number).read_bytes()


def _save(get: Get, folder: Path, number: int) -> None:
    _path_of(folder, number).write_bytes(get(number))


def _path_of(folder: Path, number: int) -> Path:
    return folder / f"{number}.jpg"


def _epoch(loader, net: torch.nn.Module) -> dict:
    """Take the time from iter() to the end; a checksum costs less than a millisecond."""
    begin = time.perf_counter()
    checksums = []
    for batch, numbers in loader:
        _look_at(net, batch)
        checksums.append(_checksum(batch, numbers))
    return {"seconds": time.perf_counter() - begin, "checksums": checksums}
