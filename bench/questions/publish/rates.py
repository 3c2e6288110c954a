"""The rates of trainers that read the same batches, and what they cost."""

import argparse
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

import shmloader
from bench.driver import alone, in_turns, middle
from bench.questions.publish import peer
from bench.questions.publish.compared import due, right
from bench.usage import descendants, memory_bytes

_NAME = f"bench-{os.getpid()}"
_SAMPLE_S = 0.002
_WAIT_S = 60.0
_LONGEST_S = 90.0  # of a run
_EPOCHS = 2
LOADS = ("waiting", "computing", "large")
_ROWS = {"waiting": 16, "computing": 16, "large": 8}  # of a batch
_BATCHES = {"waiting": 60, "computing": 40, "large": 60}
_LARGE_BYTES = 38_500_000
EACH, PUBLISH = "a loader each", "publish"
COLUMNS = {
    "load": "load",
    "trainers": "trainers",
    "way": "way",
    "batches/s of each": "rate",
    "right, of all that were due": "right",
    "CPU s of all": "cpu_s",
    "CPU ms a batch of a trainer": "trainer_ms",
    "PSS of all, MB": "pss_mb",
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
    way: str


def run(row: Row) -> dict:
    """Run the trainers, and what they need."""
    context = multiprocessing.get_context("fork")
    found, pipe = context.Pipe(duplex=False)
    ports = peer.free_ports()
    trainers = [
        context.Process(target=_train, args=(row, number, pipe, ports))
        for number in range(row.trainers)
    ]
    for trainer in trainers:
        trainer.start()
    told, tell = context.Pipe(duplex=False)
    source = context.Process(target=_hand_on, args=(row, ports, told))
    source.start()
    until = time.monotonic() + _LONGEST_S
    seen = []
    while len(seen) < row.trainers and found.poll(max(0.0, until - time.monotonic())):
        seen.append(found.recv())
    tell.send("enough")
    source.join(_WAIT_S if len(seen) == row.trainers else 0)
    for process in (*trainers, source):
        process.kill()
        process.join()
    return _figures(row, seen)


def _figures(row: Row, told: list[dict]) -> dict:
    wanted = due(len(Samples(row.load)), 2 * _EPOCHS, **_order(row))
    batches = _EPOCHS * _BATCHES[row.load]
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    figures = {
        "cpu_s": sum(usage.ru_utime + usage.ru_stime for usage in usages),
        "least": min((right(each["seen"], wanted) for each in told), default=0),
        "due": batches,
        "late": row.trainers - len(told),
    }
    figures["correct"] = figures["least"] == batches and not figures["late"]
    if not figures["late"]:
        figures["rate"] = min(each["rate"] for each in told)
        figures["trainer_ms"] = max(each["trainer_ms"] for each in told)
        figures["pss_mb"] = max(each["pss_mb"] for each in told)
    return figures


def _hand_on(row: Row, ports: list[int], told: Any) -> None:
    if row.way == PUBLISH:
        loader = _loader(row, row.workers, shmloader.DataLoader)
        shmloader.publish(loader, _NAME, subscribers=row.trainers)
    elif row.way == peer.label:
        loader = _loader(row, row.workers, torch.utils.data.DataLoader)
        peer.produce(loader, ports, row.trainers, told)


def _loader(row: Row, workers: int, kind: Any) -> Any:
    return kind(Samples(row.load), num_workers=workers, persistent_workers=True, **_order(row))


def _order(row: Row) -> dict[str, Any]:
    generator = torch.Generator()
    generator.manual_seed(1)
    return {"batch_size": _ROWS[row.load], "shuffle": True, "generator": generator}


def _batches(row: Row, ports: list[int]) -> Any:
    if row.way == PUBLISH:
        return shmloader.subscribe(_NAME, timeout=_WAIT_S)
    if row.way == peer.label:
        return nullcontext(peer.consume(ports, _ROWS[row.load]))
    return closing(_loader(row, max(1, row.workers // row.trainers), shmloader.DataLoader))


def _train(row: Row, number: int, pipe: Any, ports: list[int]) -> None:
    seen: list[list[int]] = []
    pss_mb = 0.0
    with _batches(row, ports) as batches:
        for epoch in range(_EPOCHS):
            began, cpu_began = time.perf_counter(), time.process_time()
            before = len(seen)
            for samples, indices in batches:
                is_whole = bool(samples[0, -1] == samples.shape[1] - 1)
                seen.append(indices.tolist() if is_whole else [])
                del samples, indices
                if number == 0 and epoch and len(seen) - before == _BATCHES[row.load] // 2:
                    pss_mb = _pss_mb()
            seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
            count = max(1, len(seen) - before)
    figures = {"rate": count / seconds, "trainer_ms": 1e3 * cpu_s / count, "pss_mb": pss_mb}
    pipe.send({**figures, "seen": seen})
    os._exit(0)  # at once, because another's sockets may keep a process from its end


def _pss_mb() -> float:
    parent = os.getppid()
    return sum(memory_bytes(pid)["Pss"] for pid in (parent, *descendants(parent))) / 1e6


def records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row for each load, number of trainers and way."""
    reason = peer.available()
    if reason:
        print(f"skipped {peer.label}: {reason}", file=sys.stderr)
    ways = [EACH, PUBLISH, *([] if reason else [peer.label])]
    for load in options.load or LOADS:
        for trainers in options.trainers or (1, 2, 4):
            runs = in_turns(
                ways,
                options.rounds,
                lambda way, load=load, trainers=trainers: alone(
                    Row(load, trainers, options.workers, way)
                )[0],
            )
            for way, found in runs.items():
                yield {"load": load, "trainers": trainers, "way": way, **_middle(way, found)}


def _middle(way: str, found: list[dict]) -> dict:
    worst = min(found, key=lambda each: (-each["late"], each["least"]))
    figures = {name: middle(found, name) for name in ("rate", "cpu_s", "trainer_ms", "pss_mb")}
    figures["right"] = f"{worst['least']} of {worst['due']}"
    if worst["late"]:
        figures["right"] = f"{worst['late']} were not done in {_LONGEST_S:g} s"
    if way != peer.label:  # which of a peer's come is what is asked
        figures["correct"] = all(each["correct"] for each in found)
    return figures
