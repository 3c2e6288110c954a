"""
A dataset that leaks, with `worker_bytes`: the memory of its workers, the time, and the same bits.

    python -m bench growth
    python -m bench growth --samples 1600 --worker-bytes 1000000000 --rounds 3

Each sample leaves 5 MB behind. The batches are compared with those of the same dataset without the
leak, which maps and writes as much and gives it back. If there is memory for it, the leak also runs
with no worker replaced. They take turns. The anonymous memory of each worker, with what it
inherited, is read every 50 ms.
"""

import hashlib
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.driver import in_turns, middle
from bench.loaders import opened
from bench.loads.leaks import LEAK_BYTES, leaking
from bench.question import Options, Question, number
from bench.usage import process_ids
from shmloader.memory import limits

_LEAKS, _LEAKLESS = "leaks 5 MB a sample", "without the leak"


def _records(options: Options) -> Iterator[dict]:
    """Yield a row without the leak and one with it; it is right if the digests are equal."""
    cases: dict[str, tuple[int | None, int | None]] = {_LEAKLESS: (0, None)}
    if options.samples * LEAK_BYTES < (limits.available_bytes() or 0) // 2:
        cases[f"{_LEAKS}, never replaced"] = None, None
    cases[_LEAKS] = None, options.worker_bytes
    runs = in_turns(cases, options.rounds, lambda name: _run(options, *cases[name]))
    right = runs[_LEAKLESS][0]["digest"]
    for name, found in runs.items():
        yield {
            "dataset": name,
            "worker_bytes, MB": options.worker_bytes / 1e6 if name == _LEAKS else None,
            "s": middle(found, "seconds"),
            "replaced": max(run["replaced"] for run in found),
            "most of a worker, MB": max(run["peak_mb"] for run in found),
            "correct": {run["digest"] for run in found} == {right},
        }


def _run(options: Options, kept: int | None, worker_bytes: int | None) -> dict:
    """Run one epoch: its time and digest, and what a worker had at most."""
    torch.manual_seed(1)
    given = {"num_workers": options.workers, "worker_bytes": worker_bytes}
    most, is_over, digest = {"peak_mb": 0.0}, threading.Event(), hashlib.sha256()
    watcher = threading.Thread(target=_watch, args=(most, is_over))
    with opened("ours", leaking(options.samples, kept), 8, **given) as loader:
        begin = time.perf_counter()
        watcher.start()
        for batch in loader:
            digest.update(batch.numpy())
        seconds, replaced = time.perf_counter() - begin, loader.stats().replaced
        is_over.set()
        watcher.join()
    return {"seconds": seconds, "digest": digest.hexdigest(), "replaced": replaced, **most}


def _watch(most: dict[str, float], is_over: threading.Event) -> None:
    """Note the most that a worker has."""
    while not is_over.wait(0.05):
        most["peak_mb"] = max(most["peak_mb"], *map(_anonymous_mb, process_ids()[1]), 0.0)


def _anonymous_mb(pid: int) -> float:
    """Read what the kernel has at hand: a walk over all pages would keep the process from work."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):  # it has just ended
        return 0.0
    return (resident - shared) * resource.getpagesize() / 1e6


QUESTION = Question(
    _records,
    {
        "samples": number(20_000),
        "workers": number(2),
        "worker_bytes": number(2_000_000_000),
        "rounds": number(1),
    },
)
