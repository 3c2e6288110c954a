"""
One loader for several trainers, beside a loader of its own for each, and beside TensorSocket.

    python -m bench publish
    python -m bench publish --part rates --trainers 1 --trainers 4 --rounds 3
    python -m bench publish --part deaths

rates: each trainer reads two epochs, the second of which is measured, and drops its batches. Where
samples wait or compute, it is for 2 ms. Each loader has at least one worker. Of the batches that a
trainer took, those are right that torch's loader would have given, in its order.

deaths: three trainers read two epochs of 40 batches, and something happens when each has taken ten.
Each run has 45 s.

TensorSocket is of the optional extra `peers`, and runs at its defaults over torch's loader.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from bench.driver import children, middle
from bench.loads import Made
from bench.loads.costs import burn
from bench.question import Options, Question, number, numbers, several
from bench.questions.publish import deaths, parts, peer

_SAMPLE_S = 0.002
_LONGEST_S = 90.0  # of a run
_LARGE_BYTES = 38_500_000


def _load(
    batches: int, rows: int, floats: int, pause: Callable[[float], None] | None = None
) -> parts.Load:
    """Make samples of so many numbers, which wait or compute by a pause."""
    sample = torch.arange(floats, dtype=torch.float32)

    def make(index: int) -> tuple[torch.Tensor, int]:
        if pause:
            pause(_SAMPLE_S)
        return sample, index

    return parts.Load(Made(batches * rows, make), rows, lambda came, _: came[0, -1] == floats - 1)


LOADS: dict[str, Callable[[], parts.Load]] = {
    "waiting": partial(_load, 60, 16, 3000, time.sleep),
    "computing": partial(_load, 40, 16, 3000, burn),
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


def _records(options: Options) -> Iterator[dict]:
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


QUESTION = Question(
    {"rates": _records, "deaths": deaths.records},
    {
        "load": several(LOADS),
        "trainers": numbers("default: 1, 2 and 4"),
        "workers": number(4, "in all"),
        "rounds": number(1),
    },
)
