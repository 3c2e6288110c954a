"""
One loader for several trainers, beside a loader of its own for each.

    python -m bench publish
    python -m bench publish --trainers 1 --trainers 4 --rounds 3

Each trainer reads two epochs, the second of which is measured, and drops its batches. The loads:
samples that wait 2 ms, as for a network; samples that compute for 2 ms, as in decoding; and batches
of 38.5 MB that cost nothing to make. Both ways have the same number of workers in all, where each
loader has at least one. Every batch's checksum is compared. CPU and memory are those of all
processes; the memory is PSS, in which what processes share counts once.
"""

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

import shmloader
from bench.driver import alone, in_turns, middle
from bench.usage import descendants, memory_bytes

_NAME = f"bench-{os.getpid()}"
_SAMPLE_S = 0.002
_WAIT_S = 60.0
_LOADS = ("waiting", "computing", "large")
_ROWS = {"waiting": 16, "computing": 16, "large": 8}  # of a batch
_BATCHES = {"waiting": 60, "computing": 40, "large": 60}
_LARGE_BYTES = 38_500_000
_WAYS = {"a loader each": False, "publish": True}
COLUMNS = {
    "load": "load",
    "trainers": "trainers",
    "way": "way",
    "batches/s of each": "rate",
    "CPU s of all": "cpu_s",
    "CPU ms a batch of a trainer": "trainer_ms",
    "PSS of all, MB": "pss_mb",
    "correct": "correct",
}


class Samples(Dataset):
    """Samples of one load."""

    def __init__(self, load: str) -> None:
        self.load = load
        length = _LARGE_BYTES // _ROWS[load] // 4 if load == "large" else 3000
        self.sample = torch.arange(length, dtype=torch.float32)

    def __len__(self) -> int:
        return _BATCHES[self.load] * _ROWS[self.load]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.load == "waiting":
            time.sleep(_SAMPLE_S)
        end = time.thread_time() + (_SAMPLE_S if self.load == "computing" else 0)
        while time.thread_time() < end:
            pass
        return self.sample, index


@dataclass(frozen=True)
class Row:
    """What is run: which load, by how many trainers, with how many workers in all, which way."""

    load: str
    trainers: int
    workers: int
    publishes: bool


def run(row: Row) -> dict:
    """Run the trainers, and what they need."""
    context = multiprocessing.get_context("fork")
    found, pipe = context.Pipe(duplex=False)
    trainers = [
        context.Process(target=_train, args=(row, number, pipe)) for number in range(row.trainers)
    ]
    for trainer in trainers:
        trainer.start()
    if row.publishes:
        shmloader.publish(_loader(row, row.workers), _NAME, subscribers=row.trainers)
    told = [found.recv() for _ in trainers]
    for trainer in trainers:
        trainer.join()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    expected = _expected(row)
    return {
        "rate": min(each["rate"] for each in told),
        "trainer_ms": max(each["trainer_ms"] for each in told),
        "pss_mb": max(each["pss_mb"] for each in told),
        "cpu_s": sum(usage.ru_utime + usage.ru_stime for usage in usages),
        "correct": all(each["seen"] == expected for each in told),
    }


def _loader(row: Row, workers: int) -> Any:
    return shmloader.DataLoader(Samples(row.load), num_workers=workers, **_order(row))


def _batches(row: Row) -> Any:
    if row.publishes:
        return shmloader.subscribe(_NAME, timeout=_WAIT_S)
    return _loader(row, max(1, row.workers // row.trainers))


def _train(row: Row, number: int, pipe: Any) -> None:
    with _batches(row) as batches:
        seen = _read(batches)
        began, cpu_began = time.perf_counter(), time.process_time()
        pss_mb = 0.0
        for place, (samples, indices) in enumerate(batches):
            seen += indices.tolist()
            correct = bool(samples[0, -1] == samples.shape[1] - 1)
            del samples, indices
            if number == 0 and place == _BATCHES[row.load] // 2:
                pss_mb = _pss_mb()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    pipe.send(
        {
            "rate": _BATCHES[row.load] / seconds,
            "trainer_ms": 1e3 * cpu_s / _BATCHES[row.load],
            "pss_mb": pss_mb,
            "seen": seen if correct else [],
        }
    )


def _read(batches: Iterable[Any]) -> list[int]:
    return [index for _, indices in batches for index in indices.tolist()]


def _expected(row: Row) -> list[int]:
    """List what both epochs must have, as torch's loader has it."""
    numbers = range(len(Samples(row.load)))
    loader = torch.utils.data.DataLoader(numbers, num_workers=1, **_order(row))
    return [index for _ in range(2) for batch in loader for index in batch.tolist()]


def _order(row: Row) -> dict[str, Any]:
    generator = torch.Generator()
    generator.manual_seed(1)
    return {
        "batch_size": _ROWS[row.load],
        "shuffle": True,
        "generator": generator,
        "persistent_workers": True,
    }


def _pss_mb() -> float:
    parent = os.getppid()
    return sum(memory_bytes(pid)["Pss"] for pid in (parent, *descendants(parent))) / 1e6


def records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row for each load, number of trainers and way."""
    for load in options.load or _LOADS:
        for trainers in options.trainers or (1, 2, 4):
            runs = in_turns(
                _WAYS,
                options.rounds,
                lambda way, load=load, trainers=trainers: alone(
                    Row(load, trainers, options.workers, _WAYS[way])
                )[0],
            )
            for way, found in runs.items():
                figures = ("rate", "cpu_s", "trainer_ms", "pss_mb")
                yield {
                    "load": load,
                    "trainers": trainers,
                    "way": way,
                    **{figure: middle(found, figure) for figure in figures},
                    "correct": all(each["correct"] for each in found),
                }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--load", action="append", choices=_LOADS, help="default: all")
    parser.add_argument("--trainers", type=int, action="append", help="default: 1, 2 and 4")
    parser.add_argument("--workers", type=int, default=4, help="in all; default: 4")
    parser.add_argument("--rounds", type=int, default=1)
