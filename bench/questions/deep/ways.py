"""
One way to have many batches ahead, in a process of its own.

    python -m bench.questions.deep '{"way": "ours", "most": ..., "away_s": ..., ...}'

The training is elsewhere for away_s seconds, then takes as many batches as the buffer holds, as
fast as it can, and once more. It prints a JSON line: what it waited for, what was held, and what
it saw.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import DataLoader as TorchLoader

from bench.questions.deep.pictures import BATCH, BATCH_BYTES, Crops, look_at
from bench.questions.deep.script import path_of, place_in
from shmloader import DataLoader

ROUNDS, WORKERS = 2, 2
_WAITED_S = 1e-3  # a step that had to wait, not only to look
_LOOKS_S = 0.05  # between two looks at the memory of the machine
_LATE_S = 120


def main(text: str) -> None:
    """Run the way that a line of JSON names."""
    spec = json.loads(text)
    torch.set_num_threads(1)
    batches = ROUNDS * spec["most"]
    with _watched() as most, _WAYS[spec["way"]](batches, spec) as (draw, made):
        result = _train(draw, made, spec["most"], spec["away_s"])
    print(json.dumps({**result, **most}))


def _train(draw, made, most: int, away_s: float) -> dict:
    """Take the batches. Returns times in seconds, counts, and what was looked at."""
    looks = [look_at(draw())]
    rounds = []
    for _ in range(ROUNDS):
        time.sleep(away_s)
        about = {"made": made(), "waits": 0, "longest_s": 0.0}
        begin = time.perf_counter()
        taken = min(most, ROUNDS * most - len(looks))
        for _ in range(taken):
            asked = time.perf_counter()
            batch = draw()
            waited_s = time.perf_counter() - asked
            looks.append(look_at(batch))
            about["waits"] += waited_s > _WAITED_S
            about["longest_s"] = max(about["longest_s"], waited_s)
        rounds.append({**about, "rate": taken / (time.perf_counter() - begin)})
    return {"rounds": rounds, "looks": looks}


@contextmanager
def _ours(batches: int, spec: dict) -> Iterator:
    with DataLoader(
        Crops(batches), BATCH, num_workers=WORKERS, prefetch_factor=spec["most"] // WORKERS,
        ring_bytes=round(1.1 * (spec["most"] + 8) * BATCH_BYTES),
    ) as loader:  # fmt: skip
        iterator = iter(loader)
        yield lambda: next(iterator), _made_by_top


def _made_by_top() -> int:
    """Ask from outside how many batches are made, as anyone may."""
    command = [sys.executable, "-m", "shmloader", "top", str(os.getpid()), "--once", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return told["trainers"][0]["loaders"][0]["made"]


@contextmanager
def _torchs(batches: int, spec: dict) -> Iterator:
    iterator = iter(
        TorchLoader(
            Crops(batches), BATCH, num_workers=WORKERS, prefetch_factor=spec["most"] // WORKERS
        )
    )
    yield lambda: next(iterator), lambda: None


@contextmanager
def _script(batches: int, spec: dict) -> Iterator:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        about = {"folder": name, "batches": batches, "most": spec["most"], "poll_s": spec["poll_s"]}
        command = [sys.executable, "-m", "bench.questions.deep.script", json.dumps(about)]
        with subprocess.Popen(command) as script:
            try:
                yield _Files(folder), lambda: len(list(folder.glob("*.pt")))
                script.wait(_LATE_S)
            finally:
                script.kill()


class _Files:
    """Reads one batch after the other, and says in a text file which."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._next = 0

    def __call__(self) -> list[torch.Tensor]:
        path = path_of(self._folder, self._next)
        late = time.monotonic() + _LATE_S
        while not path.exists():
            if time.monotonic() > late:
                raise TimeoutError(f"{path} does not come")
            time.sleep(1e-3)
        batch = torch.load(path)
        self._next += 1
        place_in(self._folder).write_text(str(self._next))
        return batch


@contextmanager
def _watched() -> Iterator[dict]:
    """Note the most shared memory of the machine, less what there was, and the most descriptors."""
    most = {"shared_bytes": 0, "left_bytes": 0, "descriptors": 0}
    before, is_over = _shared_bytes(), threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOKS_S):
            most["shared_bytes"] = max(most["shared_bytes"], _shared_bytes() - before)
            most["descriptors"] = max(most["descriptors"], len(os.listdir("/proc/self/fd")))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        is_over.set()
        watcher.join()
        most["left_bytes"] = _shared_bytes() - before


def _shared_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise LookupError("this kernel does not say how much memory is shared")


_WAYS = {"ours": _ours, "torch": _torchs, "script": _script}
