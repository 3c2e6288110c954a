"""
What following `tune` brings: two loops as they are and with its options, beside torch's loader.

    python -m bench tune
    python -m bench tune --loop records --rounds 5

The loops are those of two complaints: many small arrays from a stream, each of which takes a while,
and samples of which one in a hundred takes 50 times as long as the others. The step sleeps. Both
loaders take turns with both settings; torch takes those options that it has. Rates are those behind
the start, and the batches are checked.
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
    """Yield four rows per loop; a row is right if every batch was."""
    for name in options.loop or LOOPS:
        loop = LOOPS[name]
        found = shmloader.tune(lambda loop=loop: _make(loop, "ours"), loop.step_s, seconds=15)
        for row in _rows(loop, found.options, options):
            yield {"loop": name, **row, "told": [found.line]}


def _end(_: Options, found: dict[str, list[dict]]) -> None:
    """Print what `tune` said of each loop."""
    for name, told in {row["loop"]: row["told"] for row in found["tune"]}.items():
        print(f"\n{name}: {told[0]}")


def _make(loop: Loop, loader: str, **changed: Any) -> Any:
    known = {name: changed[name] for name in changed if loader == "ours" or name in _TORCHS}
    return LOADERS[loader](loop.dataset, **{**loop.options, **known})


def _rows(loop: Loop, tuned: dict[str, Any], options: Options) -> Iterator[dict]:
    contenders = [(setting, loader) for setting in ("before", "tuned") for loader in LOADERS]
    changes: dict[str, dict] = {"before": {}, "tuned": tuned}
    runs = in_turns(
        contenders,
        options.rounds,
        lambda each: _run(loop, each[1], changes[each[0]], options.seconds),
    )
    for setting, loader in contenders:
        own, set_to = runs[setting, loader], {**loop.options, **changes[setting]}
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
    made = _make(loop, loader, **changed)
    workers, depth = made.num_workers, made.prefetch_factor
    started = workers * depth + workers  # what was ordered at the start, and once more
    check = loop.check(workers)
    is_right, waited_s, timed = True, 0.0, 0
    begun = before = time.perf_counter()
    with closing(made):
        for number, batch in enumerate(made):
            now = time.perf_counter()
            if number >= started:
                waited_s, timed = waited_s + now - before, timed + 1
            # The check is a part of the step, as the reading of a batch is in a training.
            is_right = check(batch) and is_right
            del batch
            time.sleep(max(0.0, loop.step_s - (time.perf_counter() - now)))
            before = time.perf_counter()
            if number + 1 == started:
                begun = before
            if number >= started and before - begun > seconds and timed % workers == 0:
                break
        elapsed_s = before - begun
    return {"rate": timed / elapsed_s, "waits": waited_s / elapsed_s, "correct": is_right}


QUESTION = Question(
    _records,
    {
        "loop": several(LOOPS),
        "rounds": number(2, "runs of each loader and setting"),
        "seconds": number(4.0, "of each run, behind its start"),
    },
    _end,
)
