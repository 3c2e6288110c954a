"""
What waits cost: small batches, whose time is wakes, where there are cores for all and where not.

    python -m bench waits
    python -m bench waits --before ../earlier       another checkout's shmloader in turns
    python -m bench waits --row "1 sample, 1 worker" --rounds 9

A batch is one (8,) float32 or 128 (3, 32, 32) uint8. Where samples wait, a look costs and finds
nothing. Medians over the rounds of a whole epoch behind the first one; CPU is the training
process's. "found" and "vain" are looks before parking, of all processes, for a thousand batches.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from statistics import median
from typing import Any

import torch

from bench import groups
from bench.driver import alone, in_turns, middle, mistakes, ratios
from bench.loaders import opened
from bench.loads import Made
from bench.loads.costs import other_programs
from bench.loops import Counted, play, step_of
from bench.question import Options, Question, number, several
from bench.report.table import figure, span
from bench.run import BEFORE, shmloader_of

_OURS, _BEFORE = "ours", "before"
_CIFAR = {"batch_size": 128, "batches": 1500}
ROWS: dict[str, dict[str, Any]] = {
    "1 sample, 1 worker": {},
    "1 sample, 2 workers": {"workers": 2},
    "1 sample, 8 workers": {"workers": 8},
    "128 samples, 1 worker": _CIFAR,
    "128 samples, 2 workers": {**_CIFAR, "workers": 2},
    "beside a busy process": {**_CIFAR, "beside": 1},
    "2 workers beside a busy process": {**_CIFAR, "workers": 2, "beside": 1},
    "a quota of 1.5 cores": _CIFAR,
    "nice=10": {**_CIFAR, "nice": 10},
    "a step of two threads": {**_CIFAR, "threads": 2},
    "one of two ranks": _CIFAR,
    "samples that wait 2 ms": {"batches": 300, "sleep_s": 0.002},
}
_VARIABLES = {"one of two ranks": {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}}
_CORES = {"a quota of 1.5 cores": 1.5}


def _records(options: Options) -> Iterator[dict]:
    """Yield each row."""
    names = [_OURS, _BEFORE] if options.before else [_OURS]
    for name in options.row or ROWS:
        if not _has_group(name):
            print(f"skipped {name}: no control group can be made here", file=sys.stderr)
            continue
        found = in_turns(names, options.rounds, partial(_run, options, name))
        ours, before = found[_OURS], found.get(_BEFORE, [])
        times = ratios(before, ours, "us")
        yield {
            "row": name,
            "us a batch": middle(ours, "us"),
            "before": middle(before, "us"),
            "times before": f"{figure(median(times))} ({span(times)})" if times else "-",
            "trainer CPU us": middle(ours, "cpu_us"),
            "CPU before": middle(before, "cpu_us"),
            "found": middle(ours, "found"),
            "vain": middle(ours, "vain"),
            "mistakes": mistakes(found),
        }


def _run(options: Options, name: str, contender: str) -> dict:
    checkout = options.before if contender == _BEFORE else None
    with shmloader_of(checkout) as variables, _group(name) as within:
        more = {**variables, **_VARIABLES.get(name, {})}
        return alone(partial(run, **ROWS[name]), within=within, **more)


def _group(name: str) -> AbstractContextManager[list[str]]:
    return groups.cores(_CORES[name]) if name in _CORES else nullcontext([])


def _has_group(name: str) -> bool:
    with suppress(OSError), _group(name):
        return True
    return False


def run(
    *,
    workers: int = 1,
    batch_size: int = 1,
    batches: int = 4000,
    sleep_s: float = 0.0,
    beside: int = 0,
    nice: int = 0,
    threads: int = 0,
) -> dict:
    """Time an epoch of a loop, whose step computes in some threads, beside some processes."""
    sample = torch.zeros(3, 32, 32, dtype=torch.uint8) if batch_size > 1 else torch.ones(8)

    def make(index: int) -> Any:
        if sleep_s:
            time.sleep(sleep_s)
        return sample, index

    options = {"num_workers": workers, "persistent_workers": True, "nice": nice}
    dataset = Made(batch_size * batches, make)
    with other_programs(beside), opened("ours", dataset, batch_size, **options) as loader:
        play(loader, step_of(threads=threads))
        look = Counted()
        before, cpu, began = _looks(loader), time.process_time(), time.perf_counter()
        play(loader, step_of(threads=threads, look=look))
        took, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        found, vain = (now - then for now, then in zip(_looks(loader), before, strict=True))
    return {
        "us": 1e6 * took / batches,
        "cpu_us": 1e6 * cpu_s / batches,
        "found": 1000 * found / batches,
        "vain": 1000 * vain / batches,
        "mistake": look.mistake,
    }


def _looks(loader: Any) -> tuple[int, int]:
    """How many looks found something, and how many nothing; an earlier version has none."""
    stats = loader.stats()
    counters = [stats, *stats.workers]
    found = sum(getattr(each, "looks_found", 0) for each in counters)
    return found, sum(getattr(each, "looks_vain", 0) for each in counters)


QUESTION = Question(_records, {"row": several(ROWS), "rounds": number(5), "before": BEFORE})
