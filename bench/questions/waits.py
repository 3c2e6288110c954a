"""
What waits cost: small batches, whose time is wakes, where there are cores for all and where not.

    python -m bench waits
    python -m bench waits --before ../earlier       another checkout's shmloader in turns
    python -m bench waits --row "1 sample, 1 worker" --rounds 9

Rows: a batch of one (8,) float32, or of 128 (3, 32, 32) uint8, by one worker, by two and by eight;
beside a process that computes all the time; in a control group with 1.5 cores, if one can be made;
with nice=10; with a step that computes in two threads; as one of two ranks; and with samples that
wait 2 ms, where a look costs and finds nothing. Medians over the rounds of a whole epoch behind the
first one; CPU is the training process's. "found" and "vain" are looks before parking, of trainer
and workers together, for a thousand batches.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.driver import alone, in_turns, middle, mistakes, ratios
from bench.loads import Made
from bench.loads.costs import other_programs
from bench.question import Options, Question, number, several
from bench.report.table import figure, span
from bench.run import BEFORE, shmloader_of

_OURS, _BEFORE = "ours", "before"
_GROUP = Path("/sys/fs/cgroup/shmloader-bench")
_QUOTA_US, _PERIOD_US = 150_000, 100_000


@dataclass(frozen=True)
class Row:
    """
    A loop.

    Attributes:
        batch_size: Of samples of (8,) float32 if 1, otherwise of (3, 32, 32) uint8.
        batches: Of an epoch.
        sleep_s: How long a sample waits.
        beside: Processes that compute all the time.
        threads: In which the step computes; 0: there is no step.
        has_quota: In a group of 1.5 cores.
    """

    workers: int = 1
    batch_size: int = 1
    batches: int = 4000
    sleep_s: float = 0.0
    beside: int = 0
    nice: int = 0
    threads: int = 0
    has_quota: bool = False


_TINY, _CIFAR = Row(), Row(batch_size=128, batches=1500)
ROWS = {
    "1 sample, 1 worker": _TINY,
    "1 sample, 2 workers": replace(_TINY, workers=2),
    "1 sample, 8 workers": replace(_TINY, workers=8),
    "128 samples, 1 worker": _CIFAR,
    "128 samples, 2 workers": replace(_CIFAR, workers=2),
    "beside a busy process": replace(_CIFAR, beside=1),
    "2 workers beside a busy process": replace(_CIFAR, workers=2, beside=1),
    "a quota of 1.5 cores": replace(_CIFAR, has_quota=True),
    "nice=10": replace(_CIFAR, nice=10),
    "a step of two threads": replace(_CIFAR, threads=2),
    "one of two ranks": _CIFAR,
    "samples that wait 2 ms": replace(_TINY, batches=300, sleep_s=0.002),
}
_VARIABLES = {"one of two ranks": {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}}


def _records(options: Options) -> Iterator[dict]:
    """Yield each row."""
    names = [_OURS, _BEFORE] if options.before else [_OURS]
    for name in options.row or ROWS:
        if ROWS[name].has_quota and not _may_group():
            print(f"skipped {name}: no control group can be made here", file=sys.stderr)
            continue
        found = in_turns(names, options.rounds, lambda each, row=name: _run(row, each, options))
        ours, before = found[_OURS], found.get(_BEFORE, [])
        times = ratios(before, ours, "us") if before else []
        yield {
            "row": name,
            "us a batch": middle(ours, "us"),
            "before": middle(before, "us"),
            "times before": f"{figure(sorted(times)[len(times) // 2])} ({span(times)})"
            if times
            else "-",
            "trainer CPU us": middle(ours, "cpu_us"),
            "CPU before": middle(before, "cpu_us"),
            "found": middle(ours, "found"),
            "vain": middle(ours, "vain"),
            "mistakes": mistakes(found),
        }


def _run(name: str, contender: str, options: Options) -> dict:
    checkout = options.before if contender == _BEFORE else None
    with shmloader_of(checkout) as variables:
        return alone(ROWS[name], **variables, **_VARIABLES.get(name, {}))


# In a process of its own


def run(row: Row) -> dict:
    """Time an epoch of a loop."""
    from shmloader import DataLoader

    sample = torch.zeros(3, 32, 32, dtype=torch.uint8) if row.batch_size > 1 else torch.ones(8)

    def make(index: int) -> Any:
        if row.sleep_s:
            time.sleep(row.sleep_s)
        return sample, index

    dataset = Made(row.batch_size * row.batches, make)
    options: dict[str, Any] = {"persistent_workers": True, "nice": row.nice}
    with (
        other_programs(row.beside),
        _quota(row.has_quota),
        DataLoader(dataset, row.batch_size, num_workers=row.workers, **options) as loader,
    ):
        step = _step(row.threads)
        _epoch(loader, step)
        before, cpu, began = _looks(loader), time.process_time(), time.perf_counter()
        numbers = _epoch(loader, step)
        took, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        found, vain = (now - then for now, then in zip(_looks(loader), before, strict=True))
    is_right = torch.cat(numbers).tolist() == list(range(len(dataset)))
    return {
        "us": 1e6 * took / row.batches,
        "cpu_us": 1e6 * cpu_s / row.batches,
        "found": 1000 * found / row.batches,
        "vain": 1000 * vain / row.batches,
        "mistake": "" if is_right else "the batches are not those of the sampler",
    }


def _epoch(loader: Any, step: Any) -> list[torch.Tensor]:
    numbers = []
    for _, labels in loader:
        step()
        numbers.append(labels.clone())
    return numbers


def _looks(loader: Any) -> tuple[int, int]:
    """How many looks found something, and how many nothing; an earlier version has none."""
    stats = loader.stats()
    counters = [stats, *stats.workers]
    found = sum(getattr(each, "looks_found", 0) for each in counters)
    return found, sum(getattr(each, "looks_vain", 0) for each in counters)


def _step(threads: int) -> Any:
    if not threads:
        return lambda: None
    torch.set_num_threads(threads)
    matrix = torch.rand(256, 256)
    return lambda: matrix @ matrix


def _may_group() -> bool:
    with contextlib.suppress(OSError), _quota(True):
        return True
    return False


@contextlib.contextmanager
def _quota(is_wanted: bool) -> Iterator[None]:
    """Run in a control group of 1.5 cores, with all that is started meanwhile."""
    if not is_wanted:
        yield
        return
    line = Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].rpartition(":")[2]
    home = Path("/sys/fs/cgroup") / line.lstrip("/") / "cgroup.procs"
    _GROUP.mkdir(exist_ok=True)
    try:
        (_GROUP / "cpu.max").write_text(f"{_QUOTA_US} {_PERIOD_US}")
        (_GROUP / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            home.write_text(str(os.getpid()))
    finally:
        with contextlib.suppress(OSError):  # a process of the row is still in it
            _GROUP.rmdir()


QUESTION = Question(
    _records,
    {"row": several(ROWS), "rounds": number(5), "before": BEFORE},
)
