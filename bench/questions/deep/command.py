"""
1,000 batches of 9.6 MB ahead of a training that is elsewhere for a while: a folder, torch, ours.

    python -m bench deep
    python -m bench deep --most 200 --away 3

The training is elsewhere for some seconds, takes as many batches as the buffer holds, as fast as it
can, and does both again. *script* has a second program fill a folder in memory and look into a text
file for the place of the training. Every batch is compared. One process for each way; it takes
11 GB of memory for 1,000 batches.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from bench.driver import alone
from bench.loaders import LOADERS
from bench.loads.images import SIDE, crops
from bench.questions.deep.script import BATCH, batch_of, path_of, place_in
from bench.usage import count_descriptors

COLUMNS = {
    "way": "way",
    "made while away": "made",
    "batches/s then": "rate",
    "steps that wait": "waits",
    "longest wait, s": "longest_s",
    "shared GB": "shared_gb",
    "left GB": "left_gb",
    "descriptors": "descriptors",
    "correct": "correct",
}
ROUNDS, WORKERS = 2, 2
_BATCH_BYTES = BATCH * 3 * SIDE * SIDE
_WAITED_S = 1e-3  # a step that had to wait, not only to look
_LOOKS_S = 0.05  # between two looks at the memory of the machine
_LATE_S = 120


@dataclass(frozen=True)
class Row:
    """A way, the batches that it may have ahead, and seconds."""

    way: str
    most: int
    away_s: float
    poll_s: float


def records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row for each way; it is right if all batches were."""
    batches = ROUNDS * options.most
    dataset = crops(batches * BATCH)
    right = [list(look_at(batch_of(dataset, number))) for number in range(batches)]
    for way in options.way or _WAYS:
        ran, _ = alone(Row(way, options.most, options.away, options.poll))
        looks = ran.pop("looks")
        yield {"way": way, **ran, "correct": looks == right}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--most", type=int, default=1000, help="batches ahead, an even number")
    parser.add_argument("--away", type=float, default=12.0, help="seconds that training is away")
    parser.add_argument(
        "--poll", type=float, default=1.0, help="seconds between the script's looks"
    )
    parser.add_argument("--way", action="append", choices=_WAYS, help="may be repeated")


def look_at(batch: list[torch.Tensor]) -> tuple[int, int]:
    """What a step reads here: a part of each picture, and all labels. It tells batches apart."""
    pictures, labels = batch
    return int(pictures[:, :, ::56, ::56].sum()), int(labels.sum())


def run(row: Row) -> dict:
    """Run one way."""
    with _watched() as most, _WAYS[row.way](ROUNDS * row.most, row) as (batches, made):
        found = _train(batches, made, row)
    return {**found, **most}


def _train(batches: Iterator, made: Callable[[], int | None], row: Row) -> dict:
    """Take the batches. Returns the figures of the last round, all waits, and what was seen."""
    looks, waits = [look_at(next(batches))], []
    for _ in range(ROUNDS):
        time.sleep(row.away_s)
        ready = made()
        begin = time.perf_counter()
        taken = min(row.most, ROUNDS * row.most - len(looks))
        for _ in range(taken):
            asked = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - asked)
            looks.append(look_at(batch))
        rate = taken / (time.perf_counter() - begin)
    late = sum(wait > _WAITED_S for wait in waits)
    return {"made": ready, "rate": rate, "waits": late, "longest_s": max(waits), "looks": looks}


@contextmanager
def _by_loader(batches: int, row: Row) -> Iterator:
    options: dict = {"num_workers": WORKERS, "prefetch_factor": row.most // WORKERS}
    if row.way == "ours":
        options["ring_bytes"] = round(1.1 * (row.most + 8) * _BATCH_BYTES)
    with closing(LOADERS[row.way](crops(batches * BATCH), BATCH, **options)) as loader:
        yield iter(loader), _made_by_top if row.way == "ours" else lambda: None


def _made_by_top() -> int:
    """Ask from outside how many batches are made, as anyone may."""
    command = [sys.executable, "-m", "shmloader", "top", str(os.getpid()), "--once", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return told["trainers"][0]["loaders"][0]["made"]


@contextmanager
def _script(batches: int, row: Row) -> Iterator:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        about = {"folder": name, "batches": batches, "most": row.most, "poll_s": row.poll_s}
        command = [sys.executable, "-m", "bench.questions.deep.script", json.dumps(about)]
        with subprocess.Popen(command) as script:
            try:
                yield _files(folder), lambda: len(list(folder.glob("*.pt")))
                script.wait(_LATE_S)
            finally:
                script.kill()


def _files(folder: Path) -> Iterator[list[torch.Tensor]]:
    """Read one batch after the other, and say in a text file which."""
    for number in count():
        path = path_of(folder, number)
        late = time.monotonic() + _LATE_S
        while not path.exists():
            if time.monotonic() > late:
                raise TimeoutError(f"{path} does not come")
            time.sleep(1e-3)
        batch = torch.load(path)
        place_in(folder).write_text(str(number + 1))
        yield batch


@contextmanager
def _watched() -> Iterator[dict]:
    """Note the most shared memory of the machine, less what there was, and the most descriptors."""
    most = {"shared_gb": 0.0, "left_gb": 0.0, "descriptors": 0}
    before, is_over = _shared_gb(), threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOKS_S):
            most["shared_gb"] = max(most["shared_gb"], _shared_gb() - before)
            most["descriptors"] = max(most["descriptors"], count_descriptors(os.getpid()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        is_over.set()
        watcher.join()
        most["left_gb"] = _shared_gb() - before


def _shared_gb() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024 / 1e9
    raise LookupError("this kernel does not say how much memory is shared")


_WAYS = {"script": _script, "torch": _by_loader, "ours": _by_loader}
