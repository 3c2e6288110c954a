"""The rates of trainers that read the same batches."""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

import shmloader
from bench.driver import children, middle
from bench.loads import Made
from bench.loads.costs import pause
from bench.question import Options
from bench.questions.publish import peer
from bench.questions.publish.compared import due, right

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


def _samples(load: str) -> Made:
    length = _LARGE_BYTES // _ROWS[load] // 4 if load == "large" else 3000
    sample = torch.arange(length, dtype=torch.float32)
    costs = (_SAMPLE_S * (load == "waiting"), _SAMPLE_S * (load == "computing"))

    def make(index: int) -> tuple[torch.Tensor, int]:
        pause(*costs)
        return sample, index

    return Made(_BATCHES[load] * _ROWS[load], make)


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
        context.Process(target=_train, args=(row, pipe, ports)) for _ in range(row.trainers)
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
    wanted = due(_BATCHES[row.load] * _ROWS[row.load], 2 * _EPOCHS, **_order(row))
    batches = _EPOCHS * _BATCHES[row.load]
    least = min((right(each["seen"], wanted) for each in told), default=0)
    late = row.trainers - len(told)
    rate = None if late else min(each["rate"] for each in told)
    correct = least == batches and not late
    return {"least": least, "due": batches, "late": late, "rate": rate, "correct": correct}


def _hand_on(row: Row, ports: list[int], told: Any) -> None:
    if row.way == PUBLISH:
        loader = _loader(row, row.workers, shmloader.DataLoader)
        shmloader.publish(loader, _NAME, subscribers=row.trainers)
    elif row.way == peer.label:
        loader = _loader(row, row.workers, torch.utils.data.DataLoader)
        peer.produce(loader, ports, row.trainers, told)


def _loader(row: Row, workers: int, kind: Any) -> Any:
    return kind(_samples(row.load), num_workers=workers, persistent_workers=True, **_order(row))


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


def _train(row: Row, pipe: Any, ports: list[int]) -> None:
    seen: list[list[int]] = []
    with _batches(row, ports) as batches:
        for _ in range(_EPOCHS):
            began, before = time.perf_counter(), len(seen)
            for samples, indices in batches:
                is_whole = bool(samples[0, -1] == samples.shape[1] - 1)
                seen.append(indices.tolist() if is_whole else [])
                del samples, indices
            rate = max(1, len(seen) - before) / (time.perf_counter() - began)
    pipe.send({"rate": rate, "seen": seen})
    os._exit(0)  # at once, because another's sockets may keep a process from its end


def records(options: Options) -> Iterator[dict]:
    """Yield a row for each load, number of trainers and way."""
    reason = peer.available()
    if reason:
        print(f"skipped {peer.label}: {reason}", file=sys.stderr)
    ways = [EACH, PUBLISH, *([] if reason else [peer.label])]
    for load in options.load or LOADS:
        for trainers in options.trainers or (1, 2, 4):
            rows = {way: Row(load, trainers, options.workers, way) for way in ways}
            for way, found in children(rows, options.rounds).items():
                yield {"load": load, "trainers": trainers, "way": way, **_middle(way, found)}


def _middle(way: str, found: list[dict]) -> dict:
    worst = min(found, key=lambda each: (-each["late"], each["least"]))
    came = f"{worst['least']} of {worst['due']}"
    if worst["late"]:
        came = f"{worst['late']} were not done in {_LONGEST_S:g} s"
    # Which of a peer's come is what is asked.
    correct = way == peer.label or all(each["correct"] for each in found)
    rate = middle(found, "rate")
    return {"batches/s of each": rate, "right, of all that were due": came, "correct": correct}
