"""
Waits behind slow samples: torch and ours with both assignments, beside a loop without any overhead.

    python -m bench stalls
    python -m bench stalls --picture bench/results/stalls.png
    python -m bench stalls --depths

Samples sleep for times that are known beforehand, and so does the step; so a simulator says how
long the same loop waits if any free worker takes the next request (bound.py). It plays the steps
as they were: a timer that is late is not the loader's. `--depths` runs nothing and lists which
depth hides which tail, as the model of our loop has it.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.contenders._torch import TorchLoader
from bench.options import parser_of
from bench.questions.stalls.bound import best_waits
from bench.questions.stalls.depths import show_depths
from bench.questions.stalls.picture import draw
from bench.questions.stalls.tails import (
    BATCH,
    COUNTED,
    FIRST,
    STEP_S,
    TAILS,
    WORKERS,
    Requests,
    Samples,
    Tail,
    row_of,
)
from bench.report.rows import Rows, add_json_option
from shmloader import DataLoader

_COLUMNS = {
    "tail": "tail",
    "in order": "in_order",
    "prefetch_factor": "prefetch_factor",
    "s: torch, cycle, dynamic; bound": "seconds",
    "of the bound": "of_bound",
    "steps that wait, %": "waiting",
    "longest wait, ms": "longest",
    "correct": "correct",
}
_MAKERS: dict[str, Callable[..., Any]] = {
    "torch": TorchLoader,
    "cycle": DataLoader,
    "dynamic": lambda *dataset, **options: DataLoader(*dataset, assignment="dynamic", **options),
}
_WAITS_S = 0.001  # a step waits if next() takes longer: an eighth of the step
_DUE = 0.95  # of the bound, for "dynamic"
_PICTURED = ("one in 100", True, 4)


@dataclass(frozen=True)
class _Epoch:
    """
    An epoch that was run.

    Attributes:
        waits_s, steps_s: Seconds of each call of next() and of each step.
        best_s: Seconds that the calls would wait at least.
    """

    waits_s: list[float]
    steps_s: list[float]
    best_s: list[float]

    def figures(self) -> dict[str, float]:
        waits, best, steps = (each[FIRST:] for each in (self.waits_s, self.best_s, self.steps_s))
        counted_s, bound_s = sum(waits) + sum(steps), sum(best) + sum(steps)
        return {
            "s": counted_s,
            "bound_s": bound_s,
            "of_bound": bound_s / counted_s,
            "waiting": sum(wait > _WAITS_S for wait in waits) / len(waits),
            "bound_waiting": sum(wait > _WAITS_S for wait in best) / len(best),
            "longest_s": max(waits),
            "bound_longest_s": max(best),
        }


def main(arguments: list[str]) -> int:
    """Print a row per setting; the exit code is 0 if all is right and dynamic near the bound."""
    options = _options(arguments)
    if options.depths:
        show_depths()
        return 0
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")  # sleeping workers are cheap
    rows = Rows(_COLUMNS, options.json)
    good = True
    pictured = {}
    for tail in TAILS:
        if options.tail and tail.name not in options.tail:
            continue
        for setting in tail.settings:
            epochs, mistakes = _run(tail, *setting, options.rounds)
            if (tail.name, *setting) == _PICTURED:
                pictured = {name: _middle(each).waits_s[FIRST:] for name, each in epochs.items()}
                pictured["bound"] = _middle(epochs["dynamic"]).best_s[FIRST:]
            loaders = {name: _medians(each) for name, each in epochs.items()}
            rows.add(_record(tail.name, *setting, loaders, mistakes))
            good &= not mistakes and loaders["dynamic"]["of_bound"] >= _DUE
    if options.picture and pictured:
        draw(pictured, options.picture)
    return 0 if good else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("stalls", __doc__)
    parser.add_argument("--tail", action="append", choices=[tail.name for tail in TAILS])
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each, in turns")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the waits of each step")
    parser.add_argument("--depths", action="store_true", help="list depths, and run nothing")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: at least one")
    return options


def _run(
    tail: Tail, in_order: bool, depth: int, rounds: int
) -> tuple[dict[str, list[_Epoch]], dict[str, str]]:
    """Let the loaders take turns; the epochs of each, and who was wrong."""
    names = list(_MAKERS)
    epochs: dict[str, list[_Epoch]] = {name: [] for name in names}
    mistakes = {}
    for turn in range(rounds):
        # Another one comes first each time, so that none has the same place throughout.
        for name in (names[(turn + place) % len(names)] for place in range(len(names))):
            epoch, mistake = _measure(_MAKERS[name], tail, in_order, depth)
            epochs[name].append(epoch)
            if mistake:
                mistakes[name] = mistake
                print(f"WRONG: {name}, {tail.name}: {mistake}", file=sys.stderr)
    return epochs, mistakes


def _measure(
    make: Callable[..., Any], tail: Tail, in_order: bool, depth: int
) -> tuple[_Epoch, str | None]:
    """Run one epoch with workers that have started; its times, and what was wrong."""
    samples_s = tail.samples_s()
    requests = Requests(len(samples_s))
    loader = make(
        Samples(samples_s),
        batch_sampler=requests,
        num_workers=WORKERS,
        prefetch_factor=depth,
        in_order=in_order,
        persistent_workers=True,
    )
    with closing(loader):
        for _ in loader:
            pass
        requests.is_warm = True
        asked, returned, batches = [time.perf_counter()], [], []
        for batch in loader:
            returned.append(time.perf_counter())
            batches.append(batch.clone())
            del batch
            time.sleep(STEP_S)
            asked.append(time.perf_counter())
    waits_s = [after - before for before, after in zip(asked, returned, strict=False)]
    steps_s = [after - before for before, after in zip(returned, asked[1:], strict=True)]
    best_s = best_waits(tail.batches_s(), steps_s, WORKERS, WORKERS * depth, in_order)
    return _Epoch(waits_s, steps_s, best_s), _mistake(batches, in_order)


def _mistake(batches: list[torch.Tensor], in_order: bool) -> str | None:
    """Compare an epoch with what torch's loader must give, every value; as a set out of order."""
    if not in_order:
        batches = sorted(batches, key=lambda batch: int(batch[0, 0]))
    if len(batches) != FIRST + COUNTED:
        return f"{len(batches)} batches instead of {FIRST + COUNTED}"
    for number, batch in enumerate(batches):
        first = number * BATCH
        expected = torch.stack([row_of(index) for index in range(first, first + BATCH)])
        if not torch.equal(expected, batch):
            return f"batch {number} is not that of the sampler"
    return None


def _middle(epochs: list[_Epoch]) -> _Epoch:
    return sorted(epochs, key=lambda epoch: sum(epoch.waits_s[FIRST:]))[len(epochs) // 2]


def _medians(epochs: list[_Epoch]) -> dict[str, Any]:
    figures = [epoch.figures() for epoch in epochs]
    return {**{key: median(each[key] for each in figures) for key in figures[0]}, "rounds": figures}


def _record(
    tail: str, in_order: bool, depth: int, loaders: dict[str, Any], mistakes: dict[str, str]
) -> dict[str, Any]:
    bound = loaders["dynamic"]

    def cells(key: str, form: str, scale: float = 1.0, has_bound: bool = True) -> str:
        text = ", ".join(format(scale * each[key], form) for each in loaders.values())
        return f"{text}; {scale * bound[f'bound_{key}']:{form}}" if has_bound else text

    return {
        "tail": tail,
        "in_order": "yes" if in_order else "no",
        "prefetch_factor": depth,
        "seconds": cells("s", ".2f"),
        "of_bound": cells("of_bound", ".2f", has_bound=False),
        "waiting": cells("waiting", ".0f", 100),
        "longest": cells("longest_s", ".0f", 1e3),
        "correct": not mistakes,
        "mistakes": mistakes,
        "loaders": loaders,
    }
