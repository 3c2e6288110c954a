"""The rates of trainers that read the same batches."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from bench.driver import children, middle
from bench.loads import Made
from bench.loads.costs import pause
from bench.question import Options
from bench.questions.publish import parts, peer

_SAMPLE_S = 0.002
_LONGEST_S = 90.0  # of a run
_LARGE_BYTES = 38_500_000


def _load(
    batches: int, rows: int, floats: int, sleep_s: float = 0, burn_s: float = 0
) -> parts.Load:
    """Make samples of so many numbers, which wait or compute."""
    sample = torch.arange(floats, dtype=torch.float32)

    def make(index: int) -> tuple[torch.Tensor, int]:
        pause(sleep_s, burn_s)
        return sample, index

    return parts.Load(Made(batches * rows, make), rows, lambda came, _: came[0, -1] == floats - 1)


LOADS: dict[str, Callable[[], parts.Load]] = {
    "waiting": partial(_load, 60, 16, 3000, _SAMPLE_S),
    "computing": partial(_load, 40, 16, 3000, 0, _SAMPLE_S),
    "large": partial(_load, 60, 8, _LARGE_BYTES // 8 // 4),
}


def run(load: str, trainers: int, workers: int, way: str) -> dict:
    """Run so many trainers, and what they need; workers: in all."""
    chosen, ports = LOADS[load](), peer.free_ports()
    until = time.monotonic() + _LONGEST_S
    own = max(1, workers // trainers)
    readers = [parts.Part(_train, way, chosen, ports, own) for _ in range(trainers)]
    source = parts.Part(parts.hand_on, way, chosen, ports, workers, trainers)
    parts.listen(readers, parts.have_ended(readers), until)
    for part in (*readers, source):
        part.stop()
    told = [said for reader in readers for said in reader.said]
    wanted = chosen.due(2 * parts.EPOCHS)
    least = min((parts.right(each["seen"], wanted) for each in told), default=0)
    batches, late = parts.EPOCHS * chosen.batches, trainers - len(told)
    rate = None if late else min(each["rate"] for each in told)
    correct = least == batches and not late
    return {"least": least, "due": batches, "late": late, "rate": rate, "correct": correct}


def _train(pipe: Any, way: str, load: parts.Load, ports: list[int], workers: int) -> None:
    seen: list[list[int]] = []
    with parts.taken(way, load, ports, workers) as batches:
        for _ in range(parts.EPOCHS):
            began, before = time.perf_counter(), len(seen)
            for samples, indices in batches:
                seen.append(indices.tolist() if load.is_whole(samples, indices) else [])
                del samples, indices
            rate = max(1, len(seen) - before) / (time.perf_counter() - began)
    pipe.send({"rate": rate, "seen": seen})


def records(options: Options) -> Iterator[dict]:
    """Yield a row for each load, number of trainers and way."""
    ways = [parts.EACH, parts.PUBLISH, *peer.here()]
    for load in options.load or LOADS:
        for trainers in options.trainers or (1, 2, 4):
            rows = {way: partial(run, load, trainers, options.workers, way) for way in ways}
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
