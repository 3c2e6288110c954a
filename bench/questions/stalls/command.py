"""
Waits behind slow samples: torch and ours with both assignments, beside a loop without any overhead.

    python -m bench stalls
    python -m bench stalls --picture bench/results/stalls.png
    python -m bench stalls --depths

The bound (bound.py) plays the steps as they were: a timer that is late is not the loader's.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler

from bench.batches import are_equal
from bench.driver import in_turns, middle, mistakes
from bench.loaders import LOADERS
from bench.loads import Made
from bench.loops import play
from bench.question import Options, Question, file, flag, number, show
from bench.questions.stalls.bound import best_waits
from bench.questions.stalls.depths import depths
from bench.report.strips import strips

_MAKERS: dict[str, Callable[..., Any]] = {
    "torch": LOADERS["torch"],
    "cycle": LOADERS["ours"],
    "dynamic": partial(LOADERS["ours"], assignment="dynamic"),
}
_WORKERS, _BATCH = 4, 8
_STEP_S = 0.008
_FIRST, _COUNTED = 64, 112  # batches: what is asked for at the start is not counted
_WAITS_S = 0.001  # a step waits if next() takes longer: an eighth of the step
_DUE = 0.95  # of the bound, for "dynamic"
_PICTURED = (True, 4)
_FIGURES = ("s", "bound, s", "of the bound", "steps that wait, %", "longest wait, ms")
_STRIPS = {
    "torch": ("torch", "#0071bc"),
    "cycle": ("shmloader", "#e8a0a3"),
    "dynamic": ('shmloader, assignment="dynamic"', "#c1272d"),
    "bound": ("a loader without overhead", "#404040"),
}


def _one_in_100(draw: random.Random, count: int) -> list[float]:
    """One of each hundred, anywhere in it, takes 50 times longer."""
    slow = {start + draw.randrange(100) for start in range(0, count, 100)}
    return [0.100 if number in slow else 0.002 for number in range(count)]


# Pairs of in_order and prefetch_factor.
_SETTINGS = [(in_order, depth) for in_order in (True, False) for depth in (2, 4, 8, 16)]


class Samples(Made):
    """
    Rows of their own index, (16,) int64; one more at the end takes no time.

    A batch sleeps once, for all of its samples: each wake-up comes some 60 us late.
    """

    def __init__(self, samples_s: list[float]) -> None:
        super().__init__(len(samples_s) + 1, _row_of)
        self._samples_s = [*samples_s, 0.0]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(sum(self._samples_s[index] for index in indices))
        return [self[index] for index in indices]


def _row_of(index: int) -> torch.Tensor:
    return torch.arange(16) * 1_000_003 + index


class Requests(Sampler):
    """The requests of an epoch; `is_warm` turns from those that start the workers to the others."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.is_warm = False

    def __iter__(self) -> Iterator[list[int]]:
        if not self.is_warm:
            return iter([[self._samples]] * 2 * _WORKERS)
        return (list(range(at, at + _BATCH)) for at in range(0, self._samples, _BATCH))


def _records(options: Options) -> Iterator[dict]:
    """Yield a row per setting."""
    if options.depths:
        show(depths, options)
        return
    samples_s = _one_in_100(random.Random(15), (_FIRST + _COUNTED) * _BATCH)
    for in_order, depth in _SETTINGS:
        measure = partial(_measure, samples_s=samples_s, in_order=in_order, depth=depth)
        found = in_turns(_MAKERS, options.rounds, measure)
        if (in_order, depth) == _PICTURED and options.picture:
            _draw(found, options.picture)
        for name, own in found.items():
            wrong = mistakes({name: own})
            yield {
                "in order": "yes" if in_order else "no",
                "prefetch_factor": depth,
                "loader": name,
                **{title: middle(own, title) for title in _FIGURES},
                "correct": not wrong,
                "mistakes": wrong,
            }


def _end(_: Options, found: dict[str, list[dict]]) -> bool:
    """Returns True if dynamic assignment is near the bound."""
    rows = found["stalls"]
    return all(row["of the bound"] >= _DUE for row in rows if row["loader"] == "dynamic")


def _measure(name: str, samples_s: list[float], in_order: bool, depth: int) -> dict:
    """Run one epoch with workers that have started; its figures beside the bound's."""
    requests, batches = Requests(len(samples_s)), []
    loader = _MAKERS[name](
        Samples(samples_s),
        batch_sampler=requests,
        num_workers=_WORKERS,
        prefetch_factor=depth,
        in_order=in_order,
        persistent_workers=True,
    )

    def step(batch: torch.Tensor) -> None:
        batches.append(batch.clone())
        time.sleep(_STEP_S)

    with closing(loader):
        for _ in loader:
            pass
        requests.is_warm = True
        played = play(loader, step)
    batches_s = [sum(samples_s[at : at + _BATCH]) for at in range(0, len(samples_s), _BATCH)]
    best = best_waits(batches_s, played.steps_s(), _WORKERS, _WORKERS * depth, in_order)[_FIRST:]
    waits, steps_s = played.waits_s(_FIRST), sum(played.steps_s(_FIRST))
    counted_s, bound_s = sum(waits) + steps_s, sum(best) + steps_s
    return {
        "s": counted_s,
        "bound, s": bound_s,
        "of the bound": bound_s / counted_s,
        "steps that wait, %": 100 * sum(wait > _WAITS_S for wait in waits) / len(waits),
        "longest wait, ms": 1e3 * max(waits),
        "waits_s": waits,
        "best_s": best,
        "mistake": _mistake(batches, in_order),
    }


def _mistake(batches: list[torch.Tensor], in_order: bool) -> str | None:
    """Compare an epoch with what torch's loader must give, every value; as a set out of order."""
    if not in_order:
        batches = sorted(batches, key=lambda batch: int(batch[0, 0]))
    rows = torch.stack([_row_of(index) for index in range((_FIRST + _COUNTED) * _BATCH)])
    is_right = are_equal(list(rows.split(_BATCH)), batches)
    return None if is_right else "the batches differ from torch's"


def _draw(found: dict[str, list[dict]], path: Path) -> None:
    """Draw the waits of each step in the middle epoch of each loader, and of the bound's."""
    epochs = {name: sorted(own, key=lambda run: sum(run["waits_s"])) for name, own in found.items()}
    epochs = {name: own[len(own) // 2] for name, own in epochs.items()}
    waits_s = {name: epoch["waits_s"] for name, epoch in epochs.items()}
    waits_s["bound"] = epochs["dynamic"]["best_s"]
    with strips(path, len(waits_s), 1, (9, 5), "step", "ms of waiting", True) as all_:
        for axes, (name, waits) in zip(all_, waits_s.items(), strict=True):
            label, colour = _STRIPS[name]
            steps = range(_FIRST, _FIRST + len(waits))
            axes.bar(steps, [1e3 * wait for wait in waits], width=1.0, color=colour)
            axes.set_title(f"{label}: {sum(waits):.2f} s of waiting", loc="left", fontsize=10)


QUESTION = Question(
    _records,
    {
        "rounds": number(3, "epochs of each, in turns"),
        "picture": file("draw the waits of each step"),
        "depths": flag("list depths, and run nothing"),
    },
    _end,
)
