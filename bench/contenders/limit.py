"""
What the same workers do with no transport at all.

Each worker fetches its share of the batches and collates it into a warm private buffer with the
best copy there is (see gather.py). Nothing is sent and nothing is waited for except the common
start of an epoch, so what a loader takes beyond it is its transport. The trainer sleeps.

Workers that a barrier wakes often share one core for some milliseconds, as long as a short epoch.
So each spins for a moment after the barrier, until the kernel has spread them over the cores.
"""

import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.data import default_collate

from bench import native
from bench.batches import are_equal, payload_bytes
from bench.contenders import Contender
from bench.contenders._peers import Share
from bench.gather import warm_collate
from bench.loads import as_it_is
from bench.loads.pools import Workload

_START_S = 120  # longest wait of one process for the others at the start of an epoch
_SPREAD_S = 0.03

_barrier: Any = None  # at which the workers meet


@dataclass
class Report:
    """What one worker found; `epochs` holds the start and the end of each batch, per epoch."""

    is_right: bool
    batch_mb: float
    epochs: list[list[float]] = field(default_factory=list)
    cpu_s: float = 0.0
    minor_faults: int = 0


def _measure(workload: Workload, workers: int, epochs: int) -> dict:
    """Run timed epochs after a checked warm-up, as bench.run does for loaders."""
    native.load()
    workload.dataset()  # built before the fork, like every contender's
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(workers, timeout=_START_S)
    # The barrier keeps a process from a second share.
    with ProcessPoolExecutor(workers, fork, initializer=_meet_at, initargs=(barrier,)) as pool:
        work = partial(_work, workload, workers, epochs)
        reports = list(pool.map(work, range(workers)))
    return _record(workload, reports, epochs)


def _meet_at(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _work(workload: Workload, workers: int, epochs: int, worker: int) -> Report:
    torch.set_num_threads(1)  # as every DataLoader does in its workers
    share = partial(Share, workload, worker, workers)
    batches = share(warm_collate(workload, next(iter(share(as_it_is)))))
    right = share(workload.collate_fn or default_collate)
    is_right = all(are_equal(*pair) for pair in zip(right, batches, strict=True))
    report = Report(is_right, payload_bytes(next(iter(right))) / 1e6)
    for _ in range(epochs):
        _barrier.wait()
        _spin(_SPREAD_S)
        _epoch(batches, report)
    return report


def _epoch(batches: Share, report: Report) -> None:
    clock = time.perf_counter  # one clock for all processes
    used = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    done = [clock(), *(clock() for _ in batches)]
    report.cpu_s += time.process_time() - used[1]
    report.minor_faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - used[0]
    report.epochs.append(done)


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _record(workload: Workload, reports: list[Report], epochs: int) -> dict:
    is_right = all(report.is_right for report in reports)
    # The longest of the workers: none waits for another, and all run at the same time.
    epochs_s = [
        max(done[-1] - done[0] for done in epoch)
        for epoch in zip(*(report.epochs for report in reports), strict=True)
    ]
    batches = workload.batches * epochs
    return {
        "correct": is_right,
        "mistake": None if is_right else "a batch is not the dataset's",
        "batches": workload.batches,
        "batch_mb": reports[0].batch_mb,
        "ms_per_batch": median(epochs_s) * 1e3 / workload.batches,
        "worker_cpu_ms": sum(report.cpu_s for report in reports) * 1e3 / batches,
        "worker_minor_faults": sum(report.minor_faults for report in reports) / batches,
    }


CONTENDERS = {"limit": Contender("limit", available=native.missing, measure=_measure)}
