"""
What following `tune` brings: two loops as they are and with its options, beside torch's loader.

    python -m bench tune
    python -m bench tune --loop records --rounds 5

The loops are those of two complaints: many small arrays from a stream, each of which takes a while,
and samples of which one in a hundred takes 50 times as long. Torch takes those options that it has.
Rates are those behind the start.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, cycle, islice
from typing import Any, NamedTuple

import numpy
import torch

import shmloader
from bench.driver import in_turns, middle, ratio
from bench.loaders import LOADERS
from bench.loads import as_it_is
from bench.loads.costs import Arrays, Cost, Samples, arrays_of
from bench.loops import play
from bench.question import Options, Question, number, several

Check = Callable[[Any], bool]

_TORCHS = ("num_workers", "prefetch_factor")  # of what `tune` says, what torch's loader takes
_SHOWN = (*_TORCHS, "assignment")
_SHAPE, _WIDTH = (10, 150), 64


def records_right(workers: int) -> Check:
    """Make a check of batches in their order, of which each worker has every n-th one."""
    streams = cycle([arrays_of(worker, *_SHAPE) for worker in range(workers)])
    return lambda batch: all(map(numpy.array_equal, batch, next(streams)))


def samples_right(_: int) -> Check:
    """Make a check of batches in their order."""
    indices = count()

    def is_right(batch: Any) -> bool:
        expected = [float(index) for index in islice(indices, len(batch))]
        return torch.equal(torch.tensor(expected)[:, None].expand(-1, _WIDTH), batch)

    return is_right


class Loop(NamedTuple):
    """A loop to tune; check: makes, for a number of workers, what judges its batches in turn."""

    dataset: Any
    options: dict[str, Any]
    step_s: float
    check: Callable[[int], Check]


LOOPS = {
    "records": Loop(
        Arrays(*_SHAPE),
        {"batch_size": 128, "num_workers": 2, "prefetch_factor": 4, "collate_fn": as_it_is},
        0.05,
        records_right,
    ),
    "heavy tail": Loop(
        Samples(Cost(sleep_s=0.002, slow_s=0.098, every=100), 1 << 20, _WIDTH),
        {"batch_size": 8, "num_workers": 2, "prefetch_factor": 2},
        0.016,
        samples_right,
    ),
}


def _records(options: Options) -> Iterator[dict]:
    """Yield four rows per loop; a row is right if every batch was."""
    for name in options.loop or LOOPS:
        loop = LOOPS[name]
        found = shmloader.tune(lambda loop=loop: _make(loop, "ours", {}), loop.step_s, seconds=15)
        for row in _rows(loop, found.options, options):
            yield {"loop": name, **row, "told": [found.line]}


def _end(_: Options, found: dict[str, list[dict]]) -> None:
    """Print what `tune` said of each loop."""
    for name, told in {row["loop"]: row["told"] for row in found["tune"]}.items():
        print(f"\n{name}: {told[0]}")


def _make(loop: Loop, loader: str, changed: dict[str, Any]) -> Any:
    known = {name: changed[name] for name in changed if loader == "ours" or name in _TORCHS}
    return LOADERS[loader](loop.dataset, **{**loop.options, **known})


def _rows(loop: Loop, tuned: dict[str, Any], options: Options) -> Iterator[dict]:
    settings = {"before": {}, "tuned": tuned}
    contenders = [(setting, loader) for setting in settings for loader in LOADERS]
    runs = in_turns(
        contenders,
        options.rounds,
        lambda each: _run(loop, each[1], settings[each[0]], options.seconds),
    )
    for setting, loader in contenders:
        own, set_to = runs[setting, loader], {**loop.options, **settings[setting]}
        yield {
            "options": ", ".join(f"{each}={set_to[each]}" for each in _SHOWN if each in set_to),
            "loader": loader,
            "batches/s": middle(own, "rate"),
            "waits": f"{middle(own, 'waits'):.0%}",
            "times as it was": ratio(own, runs["before", loader], "rate"),
            "times torch": ratio(own, runs[setting, "torch"], "rate"),
            "correct": all(run["correct"] for run in own),
            "rates": [run["rate"] for run in own],
        }


def _run(loop: Loop, loader: str, changed: dict[str, Any], seconds: float) -> dict:
    """Run a loop behind its start: its rate, its share of waiting, and if every batch was right."""
    made = _make(loop, loader, changed)
    workers = made.num_workers
    first = workers * made.prefetch_factor + workers  # what was ordered at the start, and once more
    check, right = loop.check(workers), []

    def step(batch: Any) -> None:
        # The check is a part of the step, as the reading of a batch is in a training.
        begun = time.perf_counter()
        right.append(check(batch))
        time.sleep(max(0.0, loop.step_s - (time.perf_counter() - begun)))

    with closing(made):
        played = play(
            made,
            step,
            lambda so_far: (
                len(so_far.came) > first
                and so_far.asked[-1] - so_far.asked[first] > seconds
                and (len(so_far.came) - first) % workers == 0
            ),
        )
    took_s, waits_s = played.asked[-1] - played.asked[first], played.waits_s(first)
    return {
        "rate": len(waits_s) / took_s, "waits": sum(waits_s) / took_s, "correct": all(right)
    }  # fmt: skip


QUESTION = Question(
    _records,
    {
        "loop": several(LOOPS),
        "rounds": number(2, "runs of each loader and setting"),
        "seconds": number(4.0, "of each run, behind its start"),
    },
    _end,
)
