"""
A dataset that leaks, with `worker_bytes`: the memory of its workers, the time, and the same bits.

    python -m bench growth
    python -m bench growth --samples 1600 --worker-bytes 1000000000 --rounds 3

Each sample leaves 5 MB behind. The batches are compared with those of the same dataset without the
leak, which maps and writes as much and gives it back, and the time with that of workers that give
all of it back when it is `worker_bytes`: they get pages as a replaced worker does, and live on. If
there is memory for it, the leak also runs with no worker replaced. They take turns. The anonymous
memory of each worker, with what it inherited, is read every 50 ms.
"""

import argparse
import hashlib
import mmap
import resource
import sys
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch.utils.data import Dataset

from bench.options import parser_of
from bench.report.rows import Rows, add_json_option
from bench.usage import process_ids
from shmloader import DataLoader
from shmloader.memory import limits

_LEAK = 5_000_000
_BATCH = 8
_SAMPLE_S = 0.002  # of waiting beside it, so that a worker lives for seconds
_COLUMNS = {
    "dataset": "dataset",
    "worker_bytes, MB": "worker_mb",
    "s": "seconds",
    "times the row above the last one": "ratio",
    "replaced": "replaced",
    "most of a worker, MB": "peak_mb",
    "MB/s that one grows": "rate",
    "MB in its fastest second": "fastest_mb",
    "same digest": "correct",
}

_CONTENT = b"x" * _LEAK
_kept: list[mmap.mmap] = []


class Leaking(Dataset):
    """
    Samples (1,) float64, each drawn.

    Args:
        kept: Of how many a worker keeps the memory before it gives all back; None: of all.
        wait_s: What making one waits for besides.
    """

    def __init__(self, count: int, kept: int | None, wait_s: float = _SAMPLE_S):
        self._count, self._most_kept, self._wait_s = count, kept, wait_s

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        # Not of the heap, which would give the next sample the same pages again.
        taken = mmap.mmap(-1, _LEAK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        taken.write(_CONTENT)
        _kept.append(taken)
        if self._most_kept is not None and len(_kept) > self._most_kept:
            for each in _kept:
                each.close()
            _kept.clear()
        time.sleep(self._wait_s)
        return index + torch.rand(1, dtype=torch.float64)


@dataclass
class Run:
    """One epoch."""

    seconds: float = 0.0
    digest: str = ""
    replaced: int = 0
    peaks: dict[int, int] = field(default_factory=dict)  # most private bytes, by process
    fastest: int = 0  # bytes that one process grew by within a second


def main(arguments: list[str]) -> int:
    """Print a row without the leak and one with it; the exit code is 0 if the digests are equal."""
    options = _options(arguments)
    cases: dict[str, tuple[int | None, int | None]] = {"without the leak": (0, None)}
    if options.samples * _LEAK < (limits.available_bytes() or 0) // 2:
        cases["leaks 5 MB a sample, never replaced"] = None, None
    cases["gives worker_bytes back at once"] = options.worker_bytes // _LEAK, None
    cases["leaks 5 MB a sample"] = None, options.worker_bytes
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, (kept, worker_bytes) in cases.items():
            runs[name].append(_run(options, kept, worker_bytes))
    right = runs["without the leak"][0].digest
    *_, living, leaking = runs.values()
    living_s = median(run.seconds for run in living)
    rows = Rows(_COLUMNS, options.json)
    for name, found in runs.items():
        seconds = median(run.seconds for run in found)
        rows.add(
            {
                "dataset": name,
                "worker_mb": options.worker_bytes / 1e6 if found is leaking else None,
                "seconds": seconds,
                "ratio": seconds / living_s,
                "replaced": max(run.replaced for run in found),
                "peak_mb": max(max(run.peaks.values()) for run in found) / 1e6,
                "fastest_mb": max(run.fastest for run in found) / 1e6,
                "rate": options.samples * _LEAK / options.workers / seconds / 1e6,
                "correct": {run.digest for run in found} == {right},
            }
        )
    return 0 if {run.digest for found in runs.values() for run in found} == {right} else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("growth", __doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker-bytes", type=int, default=2_000_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    add_json_option(parser)
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, kept: int | None, worker_bytes: int | None) -> Run:
    run, is_over = Run(), threading.Event()
    torch.manual_seed(1)
    loader = DataLoader(
        Leaking(options.samples, kept),
        batch_size=_BATCH,
        num_workers=options.workers,
        worker_bytes=worker_bytes,
    )
    watcher = threading.Thread(target=_watch, args=(run, is_over))
    digest = hashlib.sha256()
    with closing(loader):
        begin = time.perf_counter()
        watcher.start()
        for batch in loader:
            digest.update(batch.numpy())
        run.seconds = time.perf_counter() - begin
        run.replaced = loader.stats().replaced
        is_over.set()
        watcher.join()
    run.digest = digest.hexdigest()
    return run


def _watch(run: Run, is_over: threading.Event) -> None:
    seen: dict[int, deque[tuple[float, int]]] = {}  # the looks of the last second, by process
    while not is_over.wait(0.05):
        for pid in process_ids()[1]:
            now_s, now_bytes = time.monotonic(), _anonymous_bytes(pid)
            run.peaks[pid] = max(now_bytes, run.peaks.get(pid, 0))
            looks = seen.setdefault(pid, deque())
            looks.append((now_s, now_bytes))
            while looks[0][0] < now_s - 1:
                looks.popleft()
            run.fastest = max(run.fastest, now_bytes - looks[0][1])


def _anonymous_bytes(pid: int) -> int:
    """Read what the kernel has at hand: a walk over all pages would keep the process from work."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):  # it has just ended
        return 0
    return (resident - shared) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
