"""
How many workers: what `num_workers="auto"` finds, beside every fixed number.

    python -m bench auto
    python -m bench auto --row "samples wait 20 ms" --most 16
    python -m bench auto --picture auto.png         the number over time, a strip for each row

For each row an epoch by each fixed number of workers, of ours and of torch's, then one by "auto",
which begins with 2. Rates are batches in a second, of the second half of an epoch; of "auto" after
12 windows. "found" is the number it had then, "seconds" when it had that first. A fixed number that
the group's kernel kills has no rate.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy
import torch
from torch.utils.data import Sampler

from bench import groups
from bench.driver import alone, mistakes
from bench.loaders import LOADERS, opened
from bench.loads import Made
from bench.loads.costs import other_programs
from bench.loops import Counted, play, step_of
from bench.question import Options, Question, file, number, several

_NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
ROWS: dict[str, dict[str, Any]] = {
    "samples wait 2 ms": {"wait_s": 0.002},
    "samples wait 20 ms": {"wait_s": 0.02},
    "samples wait 200 ms": {"wait_s": 0.2, "batch_size": 2},
    "samples compute": {"loops": 100},
    "half and half": {"wait_s": 0.004, "loops": 100},
    "the step hides all": {"wait_s": 0.002, "step_s": 0.1},
    "batches of 0.4 MB": {"wait_s": 0.002, "floats": 12_500},
    "batches of 38 MB": {"floats": 1_200_000},
    "batches of 154 MB": {"floats": 4_800_000},
    "a step of two threads": {"loops": 50, "threads": 2},
    "samples become 4 times slower": {"wait_s": 0.02, "slower": 4.0},
    "steps become 10 times quicker": {"wait_s": 0.02, "step_s": 0.2, "quicker": 10.0},
    "a stranger takes a core": {"loops": 100, "stranger_s": 20.0},
    "lists of 128 arrays of 1.2 MB": {
        "wait_s": 0.003125, "arrays": True, "batch_size": 128, "step_s": 0.05, "prefetch": 4,
    },
    "memory for three workers": {"wait_s": 0.02, "holds_mb": 300.0},
}  # fmt: skip
_GROUPS_MB = {"memory for three workers": 1300.0}


def _records(options: Options) -> Iterator[dict]:
    """Yield each row."""
    numbers = [each for each in _NUMBERS if each <= options.most]
    half_s = options.seconds / 2
    for name in options.row or ROWS:
        if name in _GROUPS_MB and (reason := groups.why_not()):
            print(f"skipped {name}: {reason}", file=sys.stderr)
            continue
        row = partial(run, counts_s=half_s, **ROWS[name])
        fixed = partial(row, settles_s=half_s, stranger_s=0.0)
        found = {
            loader: {
                each: _found(name, partial(fixed, loader=loader, workers=each)) for each in numbers
            }
            for loader in LOADERS
        }
        ours, theirs = found["ours"], found["torch"]
        auto = _found(name, partial(row, most=options.most, settles_s=options.settles))
        best = max(ours, key=lambda each: ours[each]["rate"])
        yield {
            "row": name,
            "auto": auto["rate"],
            "best fixed": ours[best]["rate"],
            "auto / best": auto["rate"] / ours[best]["rate"],
            "found": auto["found"],
            "best number": best,
            "seconds": auto["seconds"],
            "changes": auto["changes"],
            "torch, best": max(each["rate"] for each in theirs.values()),
            "torch, 2": theirs.get(2, _KILLED)["rate"],
            "torch, cores": theirs.get(len(os.sched_getaffinity(0)), _KILLED)["rate"],
            "over_time": auto["over_time"],
            "fixed": {each: one["rate"] for each, one in ours.items()},
            "mistakes": mistakes({"auto": [auto], "fixed": [*ours.values()]}),
        }


_KILLED: dict[str, Any] = {"rate": 0.0, "found": 0, "changes": 0, "seconds": 0.0, "over_time": []}


def _found(name: str, row: Any) -> dict:
    """Run a row; in a group it may be killed, which is a mistake of "auto" alone."""
    if name not in _GROUPS_MB:
        return alone(row)
    ended, _ = groups.run(row, _GROUPS_MB[name])
    is_auto = "workers" not in row.keywords
    return ended.found or {**_KILLED, "mistake": ended.reason if is_auto else ""}


def _draw(options: Options, found: dict[str, list[dict]]) -> None:
    """Draw how many workers there were over time, beside the best fixed number."""
    if not options.picture:
        return
    from bench.report.strips import strips

    records = found["auto"]
    size = 8.0, 0.9 * len(records) + 0.8
    with strips(options.picture, len(records), 1, size, "seconds", "workers", False) as all_axes:
        for axes, record in zip(all_axes, records, strict=True):
            seconds, numbers = zip(*record["over_time"], strict=True)
            axes.step(seconds, numbers, where="post")
            axes.axhline(record["best number"], linestyle=":", color="grey")
            axes.set_ylim(0, options.most + 1)
            axes.set_title(record["row"], fontsize=9, loc="left", pad=2)


def run(
    *,
    wait_s: float = 0.0,
    loops: int = 0,
    step_s: float = 0.0,
    floats: int = 16,
    arrays: bool = False,
    holds_mb: float = 0.0,
    batch_size: int = 8,
    prefetch: int = 2,
    threads: int = 0,
    slower: float = 1.0,
    quicker: float = 1.0,
    stranger_s: float = 0.0,
    workers: int | None = None,
    most: int = 32,
    loader: str = "ours",
    settles_s: float = 30.0,
    counts_s: float = 3.0,
) -> dict:
    """
    Run a loop for some seconds.

    Args:
        loops: How often a sample multiplies two matrices of 64 x 64.
        arrays: Samples are random arrays of (1000, 150) instead, and a batch is a list of them.
        holds_mb: What each worker keeps for itself.
        slower, quicker: How many times, in the second half of the time before it is measured.
        stranger_s: How long another program computes, from the start on.
        workers: None: "auto", of which there are `most` at most.
        settles_s, counts_s: How long it runs before it is measured, and then.
    """
    began = time.perf_counter()
    changes_at, counts_from = began + settles_s / 2, began + settles_s
    sample, matrix = torch.zeros(floats), torch.rand(64, 64)
    own: list[torch.Tensor] = []

    def make(index: int) -> tuple[Any, int]:
        if holds_mb and not own:
            own.append(torch.ones(int(holds_mb * 250_000)))
        if wait_s:
            time.sleep(wait_s * (slower if time.perf_counter() >= changes_at else 1))
        for _ in range(loops):
            matrix @ matrix
        return numpy.random.random((1000, 150)) if arrays else sample, index

    fixed, auto = {"num_workers": workers}, {"num_workers": "auto", "max_workers": most}
    options = {"batch_size": batch_size, "sampler": _Endless(), **(fixed if workers else auto)}
    options |= {"prefetch_factor": prefetch, "collate_fn": _listed if arrays else None}
    look = Counted()

    def pause() -> None:
        time.sleep(step_s / (quicker if time.perf_counter() >= changes_at else 1))

    dataset, stranger = Made(1 << 40, make), other_programs(bool(stranger_s), stranger_s)
    with stranger, opened(loader, dataset, **options) as loaded:
        step = step_of(pause, threads, look)
        played = play(loaded, step, lambda so_far: so_far.came[-1] >= counts_from + counts_s)
        changes = () if workers else loaded.stats().changes
    counted = [came for came in played.came if came >= counts_from]
    came_s = [came - began for came in played.came]
    number = [(0.0, workers or min(2, most))]
    number += [(came_s[min(each.batch, len(came_s) - 1)], each.after) for each in changes]
    found = number[-1][1]
    return {
        "rate": len(counted) / (counted[-1] - counts_from),
        "found": found,
        "changes": len(number) - 1,
        "seconds": next(at for at, each in number if each == found),
        "over_time": [*number, (came_s[-1], found)],
        "mistake": look.mistake,
    }


def _listed(samples: list[tuple[numpy.ndarray, int]]) -> tuple[list[numpy.ndarray], torch.Tensor]:
    return [array for array, _ in samples], torch.tensor([index for _, index in samples])


class _Endless(Sampler):
    """The indices in their order, without an end."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


QUESTION = Question(
    _records,
    {
        "row": several(ROWS),
        "most": number(32, "the most workers that are tried"),
        "seconds": number(6.0, "of each fixed number"),
        "settles": number(30.0, 'of "auto", before it counts'),
        "picture": file("draws how many workers there were"),
    },
    _draw,
)
