"""
How many workers: what `num_workers="auto"` finds, beside every fixed number.

    python -m bench auto
    python -m bench auto --row "samples wait 20 ms" --most 16

Rows: samples that wait, that compute, half and half; a step that hides everything; batches of 0.4,
38 and 154 MB; a step that computes in two threads; and loads that change in the middle. For each
row an epoch by each fixed number of workers, of ours and of torch's, then one by "auto", which
begins with 2. Rates are batches in a second, of the second half of an epoch; of "auto" so many
seconds after its start that 12 windows are over. "found" is the number it had then, "seconds" when
it had that first, "changes" how often it changed.
"""

import itertools
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import Sampler

from bench.driver import alone, mistakes
from bench.loaders import LOADERS, opened
from bench.loads import Made
from bench.loops import Counted, play, step_of
from bench.question import Options, Question, number, several

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
}


def _records(options: Options) -> Iterator[dict]:
    """Yield each row."""
    numbers = [each for each in _NUMBERS if each <= options.most]
    half_s = options.seconds / 2
    for name in options.row or ROWS:
        row = partial(run, counts_s=half_s, **ROWS[name])
        found = {
            loader: {
                each: alone(partial(row, loader=loader, workers=each, settles_s=half_s))
                for each in numbers
            }
            for loader in LOADERS
        }
        ours, theirs = found["ours"], found["torch"]
        auto = alone(partial(row, most=options.most, settles_s=options.settles))
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
            "torch, 2": theirs[2]["rate"] if 2 in theirs else None,
            "over_time": auto["over_time"],
            "mistakes": mistakes({"auto": [auto], "fixed": [*ours.values()]}),
        }


def run(
    *,
    wait_s: float = 0.0,
    loops: int = 0,
    step_s: float = 0.0,
    floats: int = 16,
    batch_size: int = 8,
    threads: int = 0,
    slower: float = 1.0,
    workers: int | None = None,
    most: int = 32,
    loader: str = "ours",
    settles_s: float = 30.0,
    counts_s: float = 3.0,
) -> dict:
    """
    Run a loop for some seconds.

    Args:
        wait_s: How long a sample waits.
        loops: How often it multiplies two matrices of 64 x 64.
        step_s: How long the step takes, without a core.
        floats: Of a sample.
        threads: In which the step computes; 0: it does not.
        slower: How many times longer samples wait in the second half of the first seconds.
        workers: None: "auto", of which there are `most` at most.
        settles_s, counts_s: How long it runs before it is measured, and then.
    """
    began = time.perf_counter()
    slow_from, counts_from = began + settles_s / 2, began + settles_s
    sample, matrix = torch.zeros(floats), torch.rand(64, 64)

    def make(index: int) -> tuple[torch.Tensor, int]:
        if wait_s:
            time.sleep(wait_s * (slower if time.perf_counter() >= slow_from else 1))
        for _ in range(loops):
            matrix @ matrix
        return sample, index

    fixed, auto = {"num_workers": workers}, {"num_workers": "auto", "max_workers": most}
    options = {"batch_size": batch_size, "sampler": _Endless(), **(fixed if workers else auto)}
    look = Counted()
    with opened(loader, Made(1 << 40, make), **options) as loaded:
        played = play(
            loaded,
            step_of(step_s, threads, look),
            lambda so_far: so_far.came[-1] >= counts_from + counts_s,
        )
        changes = loaded.stats().changes if loader == "ours" else ()
        found = changes[-1].after if changes else int(min(loaded.num_workers, 2))
    counted = [came for came in played.came if came >= counts_from]
    rate = (len(counted) - 1) / (counted[-1] - counted[0])
    first = next((each.batch for each in changes if each.after == found), 0)
    return {
        "rate": rate,
        "found": found,
        "changes": len(changes),
        "seconds": first / rate,  # about: until there were as many workers as at the end
        "over_time": [(each.batch, each.after) for each in changes],
        "mistake": look.mistake,
    }


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
    },
)
