"""
Pictures from an HTTP server that waits before each answer: few workers, many, and threads.

    python -m bench streaming
    python -m bench streaming --pictures 320

If glibc does not keep what a step frees, it takes up to twice its time for pages of the kernel.
"""

import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from bench.driver import alone
from bench.loaders import opened
from bench.loads.jpegs import DISTINCT, Get, decoded_jpegs, make_jpegs, pictures
from bench.question import Options, Question, number, several
from bench.questions.streaming.server import serving
from bench.real.trainings.jpegs import cnn

_BATCH = 32
_DOWNLOADERS = 8


def run(
    loader: str,
    workers: int,
    *,
    prefetch: int = 2,
    threads: int = 0,
    folder: str = "",
    epochs: int = 1,
    port: int,
    latency_ms: float,
    count: int,
) -> dict:
    """Run the epochs; folder: all pictures are downloaded there first, and then come from it."""
    net = cnn().eval()  # takes some milliseconds for a batch
    _look_at(net, torch.zeros(_BATCH, 224, 224, 3, dtype=torch.uint8))  # torch's own first time
    begin, get = time.perf_counter(), Get(port, latency_ms)
    dataset = pictures(count, _downloaded(get, count, Path(folder)) if folder else get)
    download_s = time.perf_counter() - begin
    options = {"num_workers": workers, "prefetch_factor": prefetch, "persistent_workers": True}
    options |= {"fetch_threads": threads} if loader == "ours" else {}
    with opened(loader, dataset, _BATCH, **options) as loaded:
        return {"download_s": download_s, "epochs": [_epoch(loaded, net) for _ in range(epochs)]}


def _right_checksums(count: int) -> list[int]:
    """Compute what a plain loop has, without a server or a loader."""
    decoded = decoded_jpegs()
    batches = torch.arange(count).split(_BATCH)
    return [_checksum(decoded[numbers % DISTINCT], numbers) for numbers in batches]


def _checksum(batch: torch.Tensor, numbers: torch.Tensor) -> int:
    return zlib.crc32(numbers.numpy(), zlib.crc32(batch.numpy()))


def _look_at(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return net(batch.permute(0, 3, 1, 2) / 255).argmax(1)


def _downloaded(get: Get, count: int, folder: Path) -> Callable[[int], bytes]:
    def path_of(number: int) -> Path:
        return folder / f"{number}.jpg"

    with ThreadPoolExecutor(_DOWNLOADERS) as threads:
        list(threads.map(lambda number: path_of(number).write_bytes(get(number)), range(count)))
    return lambda number: path_of(number).read_bytes()


def _epoch(loader, net: torch.nn.Module) -> dict:
    """Take the time from iter() to the end; a checksum costs less than a millisecond."""
    begin = time.perf_counter()
    checksums = []
    for batch, numbers in loader:
        _look_at(net, batch)
        checksums.append(_checksum(batch, numbers))
    return {"seconds": time.perf_counter() - begin, "checksums": checksums}


_DOWNLOADED = "torch, 2 workers, downloaded first"
_ROWS = {
    "torch, 2 workers": partial(run, "torch", 2),
    "torch, 8 workers, prefetch 8": partial(run, "torch", 8, prefetch=8),
    _DOWNLOADED: partial(run, "torch", 2),
    "ours, 2 workers, 8 threads": partial(run, "ours", 2, threads=8, epochs=3),
    "ours, 2 workers, 32 threads": partial(run, "ours", 2, threads=32, epochs=3),
}
_KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "33554432"}
_LONGEST_S = 120


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each way to load; it is right if all batches were."""
    right = _right_checksums(options.pictures)
    given = {"latency_ms": options.latency, "count": options.pictures}
    with serving(make_jpegs(DISTINCT)) as port:
        for name in options.row or _ROWS:
            with tempfile.TemporaryDirectory() as folder:
                more = {**given, "folder": folder} if name == _DOWNLOADED else given
                ran = alone(partial(_ROWS[name], port=port, **more), _LONGEST_S, **_KEEPS_MEMORY)
            seconds = [epoch["seconds"] for epoch in ran["epochs"]]
            yield {
                "loader": name,
                "download, s": ran["download_s"] if name == _DOWNLOADED else None,
                "first epoch, s": seconds[0],
                "best of two later ones, s": min(seconds[1:], default=None),
                "batches/s": len(right) / min(seconds[-2:]),
                "correct": all(epoch["checksums"] == right for epoch in ran["epochs"]),
            }


QUESTION = Question(
    _records,
    {
        "row": several(_ROWS),
        "pictures": number(999, "in an epoch"),
        "latency": number(20.0, "the server's, in ms"),
    },
)
