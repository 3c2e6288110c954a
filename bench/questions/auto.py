"""
How many workers: what `num_workers="auto"` finds, beside every fixed number.

    python -m bench auto
    python -m bench auto --row "samples wait 20 ms" --most 16
    python -m bench auto --picture auto.svg         the number over time, a strip for each row

Rows: samples that wait, that compute, half and half; a step that hides everything; batches of 0.4,
38 and 154 MB; a step that computes in two threads; loads that change in the middle, or while
another program takes a core; and a control group in which three workers have room. For each row an
epoch by each fixed number of workers, of ours and of torch's, then one by "auto", which begins with
2. Rates are batches in a second, of the second half of an epoch; of "auto" so many seconds after
its start that 12 windows are over. "found" is the number it had then, "seconds" when it had that
first, "changes" how often it changed. A fixed number that the group's kernel kills has no rate.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
import torch.utils.data

from bench import groups
from bench.driver import alone, mistakes
from bench.loads import Made
from bench.question import Options, Question, file, number, several

_NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_LOOK_S = 0.25  # between two looks at how many workers there are


@dataclass(frozen=True)
class Row:
    """
    A loop.

    Attributes:
        wait_s: How long a sample waits.
        loops: How often it multiplies two matrices of 64 x 64.
        step_s: How long the step takes, without a core.
        floats: Of a sample.
        arrays: Samples are random arrays of (1000, 150) instead, and a batch is a list of them.
        threads: In which the step computes; 0: it does not.
        slower: How many times longer samples wait in the second half.
        quicker: How many times shorter steps are then.
        stranger_s: How long another program computes from the start on, beside "auto" alone.
        holds_mb: What each worker keeps for itself.
        group_mb: Of memory, in which all of it runs; 0: all there is.
        workers: 0: "auto", of which there are `most` at most.
        kind: Of the loader.
        settles_s, counts_s: How long it runs before it is measured, and then.
    """

    wait_s: float = 0.0
    loops: int = 0
    step_s: float = 0.0
    floats: int = 16
    arrays: bool = False
    prefetch: int = 2
    batch_size: int = 8
    threads: int = 0
    slower: float = 1.0
    quicker: float = 1.0
    stranger_s: float = 0.0
    holds_mb: float = 0.0
    group_mb: float = 0.0
    workers: int = 0
    most: int = 32
    kind: str = "ours"
    settles_s: float = 30.0
    counts_s: float = 3.0


_WAITS = Row(wait_s=0.02)
ROWS = {
    "samples wait 2 ms": Row(wait_s=0.002),
    "samples wait 20 ms": _WAITS,
    "samples wait 200 ms": Row(wait_s=0.2, batch_size=2),
    "samples compute": Row(loops=100),
    "half and half": Row(wait_s=0.004, loops=100),
    "the step hides all": Row(wait_s=0.002, step_s=0.1),
    "batches of 0.4 MB": Row(wait_s=0.002, floats=12_500),
    "batches of 38 MB": Row(floats=1_200_000),
    "batches of 154 MB": Row(floats=4_800_000),
    "a step of two threads": Row(loops=50, threads=2),
    "samples become 4 times slower": replace(_WAITS, slower=4.0),
    "steps become 10 times quicker": replace(_WAITS, step_s=0.2, quicker=10.0),
    "a stranger takes a core": Row(loops=100, stranger_s=20.0),
    "lists of 128 arrays of 1.2 MB": Row(
        wait_s=0.003125, arrays=True, batch_size=128, step_s=0.05, prefetch=4
    ),
    "memory for three workers": replace(_WAITS, holds_mb=300.0, group_mb=1300.0),
}


def _records(options: Options) -> Iterator[dict]:
    """Yield each row."""
    numbers = [each for each in _NUMBERS if each <= options.most]
    for name in options.row or ROWS:
        if ROWS[name].group_mb and (reason := groups.why_not()):
            print(f"skipped {name}: {reason}", file=sys.stderr)
            continue
        half_s = options.seconds / 2
        row = replace(ROWS[name], counts_s=half_s, most=options.most)
        fixed = replace(row, settles_s=half_s, stranger_s=0.0)
        ours = {each: _found(replace(fixed, workers=each)) for each in numbers}
        theirs = {each: _found(replace(fixed, workers=each, kind="torch")) for each in numbers}
        auto = _found(replace(row, settles_s=options.settles))
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
            "torch, cores": theirs.get(len(os.sched_getaffinity(0)), {}).get("rate"),
            "over_time": auto["over_time"],
            "fixed": {each: found["rate"] for each, found in ours.items()},
            "mistakes": mistakes({"auto": [auto], "fixed": [*ours.values()]}),
        }


def _found(row: Row) -> dict:
    """Run a row; in a group it may be killed."""
    if not row.group_mb:
        return alone(row)
    outcome = groups.run(row, row.group_mb)
    if outcome.found is None and not row.workers:
        return {
            "rate": 0.0,
            "found": 0,
            "changes": 0,
            "seconds": 0.0,
            "over_time": [],
            "mistake": outcome.reason,
        }
    return outcome.found or {"rate": 0.0}


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


# In a process of its own


def run(row: Row) -> dict:
    """Run a loop for some seconds."""
    torch.set_num_threads(max(1, row.threads))
    began = time.monotonic()
    slow_from = began + row.settles_s / 2
    sample = torch.zeros(row.floats)
    matrix = torch.rand(64, 64)
    own: list[torch.Tensor] = []

    def make(index: int) -> Any:
        if row.holds_mb and not own:
            own.append(torch.ones(int(row.holds_mb * 250_000)))
        if row.wait_s:
            is_slow = row.slower != 1 and time.monotonic() >= slow_from
            time.sleep(row.wait_s * (row.slower if is_slow else 1))
        for _ in range(row.loops):
            matrix @ matrix
        return numpy.random.random((1000, 150)) if row.arrays else sample, index

    with _stranger(row.stranger_s):
        return _measure(row, _loader(row, Made(1 << 40, make)), began)


@contextlib.contextmanager
def _stranger(for_s: float) -> Iterator[None]:
    """Have another program compute meanwhile, for so long."""
    program = f"import time\nend = time.monotonic() + {for_s}\nwhile time.monotonic() < end: pass"
    stranger = subprocess.Popen([sys.executable, "-c", program]) if for_s else None
    try:
        yield
    finally:
        if stranger:
            stranger.kill()
            stranger.wait()


def _loader(row: Row, dataset: Any) -> Any:
    options: dict[str, Any] = {
        "batch_size": row.batch_size,
        "sampler": _Endless(),
        "prefetch_factor": row.prefetch,
        "collate_fn": _listed if row.arrays else None,
    }
    if row.kind == "torch":
        return torch.utils.data.DataLoader(dataset, num_workers=row.workers, **options)
    from shmloader import DataLoader

    if row.workers:
        return DataLoader(dataset, num_workers=row.workers, **options)
    return DataLoader(dataset, num_workers="auto", max_workers=row.most, **options)


def _listed(samples: list[tuple[numpy.ndarray, int]]) -> tuple[list[numpy.ndarray], list[int]]:
    return [array for array, _ in samples], [index for _, index in samples]


class _Endless(torch.utils.data.Sampler):
    """The indices in their order, without an end."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


def _measure(row: Row, loader: Any, began: float) -> dict:
    step = _step(row, began + row.settles_s / 2)
    counted, counts_from, expected, is_right = 0, 0.0, 0, True
    over_time, looked_at = [(0.0, row.workers or min(2, row.most))], began
    for _, labels in loader:
        step()
        is_right = is_right and int(labels[0]) == expected
        expected += len(labels)
        now = time.monotonic()
        if not row.workers and now - looked_at >= _LOOK_S:
            looked_at = now
            changes = loader.stats().changes
            if changes and changes[-1].after != over_time[-1][1]:
                over_time.append((now - began, changes[-1].after))
        if counts_from:
            counted += 1
            if now - counts_from >= row.counts_s:
                break
        elif now - began >= row.settles_s:
            counts_from = now
    found = over_time[-1][1]
    return {
        "rate": counted / (time.monotonic() - counts_from),
        "found": found,
        "changes": len(over_time) - 1,
        "seconds": next(at for at, number in over_time if number == found),
        "over_time": [*over_time, (time.monotonic() - began, found)],
        "mistake": "" if is_right else "the batches are not those of the sampler",
    }


def _step(row: Row, quick_from: float) -> Any:
    matrix = torch.rand(512, 512)

    def step() -> None:
        if row.step_s:
            is_quick = row.quicker != 1 and time.monotonic() >= quick_from
            time.sleep(row.step_s / (row.quicker if is_quick else 1))
        if row.threads:
            _ = matrix @ matrix

    return step


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
