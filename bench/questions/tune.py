"""
What following `tune` brings: two loops as they are and with its options.

    python -m bench tune
    python -m bench tune --loop records --rounds 5

The loops are those of two complaints: many small arrays from a stream, each of which takes a while,
and samples of which one in a hundred takes 50 times as long as the others. The step sleeps. Both
settings take turns. Rates are those behind the start, and the batches are checked.
"""

import time
from collections.abc import Callable, Iterator
from itertools import count, cycle, islice
from typing import Any, NamedTuple

import numpy
import torch

from bench.driver import in_turns, middle, ratio
from bench.loaders import opened
from bench.loads import as_it_is
from bench.loads.costs import Arrays, Cost, Samples, arrays_of
from bench.loops import Played, play
from bench.question import Options, Question, number, several
from shmloader import DataLoader, tune

Check = Callable[[Any], bool]

_SHOWN = ("num_workers", "prefetch_factor", "assignment")
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
    """
    A loop to tune.

    Attributes:
        dataset: What it loads.
        options: Of its loader, as it was.
        step_s: Seconds that its step takes.
        check: Makes, for a number of workers, what says of each batch in turn if it is right.
    """

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
    """Yield two rows per loop; a row is right if every batch was."""
    for name in options.loop or LOOPS:
        loop = LOOPS[name]
        found = tune(
            lambda loop=loop: DataLoader(loop.dataset, **loop.options), loop.step_s, seconds=15
        )
        settings = {"before": loop.options, "tuned": {**loop.options, **found.options}}

        def measure(setting: str, loop: Loop = loop, settings: dict = settings) -> dict:
            return _run(loop, settings[setting], options.seconds)

        runs = in_turns(settings, options.rounds, measure)
        for setting, own in runs.items():
            set_to = settings[setting]
            yield {
                "loop": name,
                "options": ", ".join(f"{each}={set_to[each]}" for each in _SHOWN if each in set_to),
                "batches/s": middle(own, "rate"),
                "times as it was": ratio(own, runs["before"], "rate"),
                "correct": all(run["correct"] for run in own),
            }


def _run(loop: Loop, options: dict[str, Any], seconds: float) -> dict:
    """Run a loop behind its start: its rate, and if every batch was right."""
    workers, depth = options["num_workers"], options["prefetch_factor"]
    first = workers * depth + workers  # what was ordered at the start, and once more
    check, right = loop.check(workers), []

    def step(batch: Any) -> None:
        # The check is a part of the step, as the reading of a batch is in a training.
        begun = time.perf_counter()
        right.append(check(batch))
        time.sleep(max(0.0, loop.step_s - (time.perf_counter() - begun)))

    def is_enough(so_far: Played) -> bool:
        counted = len(so_far.came) - first
        return counted > 0 == counted % workers and so_far.asked[-1] - so_far.asked[first] > seconds

    with opened("ours", loop.dataset, **options) as loaded:
        asked = play(loaded, step, is_enough).asked[first:]
    return {"rate": (len(asked) - 1) / (asked[-1] - asked[0]), "correct": all(right)}


QUESTION = Question(
    _records,
    {
        "loop": several(LOOPS),
        "rounds": number(2, "runs with each setting"),
        "seconds": number(4.0, "of each run, behind its start"),
    },
)
