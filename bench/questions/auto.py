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

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils.data

from bench.driver import alone, mistakes
from bench.loads import Made
from bench.question import Options, Question, number, several

_NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class Row:
    """
    A loop.

    Attributes:
        wait_s: How long a sample waits.
        loops: How often it multiplies two matrices of 64 x 64.
        step_s: How long the step takes, without a core.
        floats: Of a sample.
        threads: In which the step computes; 0: it does not.
        slower: How many times longer samples wait in the second half.
        workers: 0: "auto", of which there are `most` at most.
        kind: Of the loader.
        settles_s, counts_s: How long it runs before it is measured, and then.
    """

    wait_s: float = 0.0
    loops: int = 0
    step_s: float = 0.0
    floats: int = 16
    batch_size: int = 8
    threads: int = 0
    slower: float = 1.0
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
}


def _records(options: Options) -> Iterator[dict]:
    """Yield each row."""
    numbers = [each for each in _NUMBERS if each <= options.most]
    for name in options.row or ROWS:
        half_s = options.seconds / 2
        row = replace(ROWS[name], counts_s=half_s, most=options.most)
        fixed = replace(row, settles_s=half_s)
        ours = {each: alone(replace(fixed, workers=each)) for each in numbers}
        theirs = {each: alone(replace(fixed, workers=each, kind="torch")) for each in numbers}
        auto = alone(replace(row, settles_s=options.settles))
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


# In a process of its own


def run(row: Row) -> dict:
    """Run a loop for some seconds."""
    torch.set_num_threads(max(1, row.threads))
    began = time.monotonic()
    slow_from = began + row.settles_s / 2
    sample = torch.zeros(row.floats)
    matrix = torch.rand(64, 64)

    def make(index: int) -> Any:
        if row.wait_s:
            is_slow = row.slower != 1 and time.monotonic() >= slow_from
            time.sleep(row.wait_s * (row.slower if is_slow else 1))
        for _ in range(row.loops):
            matrix @ matrix
        return sample, index

    return _measure(row, _loader(row, Made(1 << 40, make)), began)


def _loader(row: Row, dataset: Any) -> Any:
    options: dict[str, Any] = {"batch_size": row.batch_size, "sampler": _Endless()}
    if row.kind == "torch":
        return torch.utils.data.DataLoader(dataset, num_workers=row.workers, **options)
    from shmloader import DataLoader

    if row.workers:
        return DataLoader(dataset, num_workers=row.workers, **options)
    return DataLoader(dataset, num_workers="auto", max_workers=row.most, **options)


class _Endless(torch.utils.data.Sampler):
    """The indices in their order, without an end."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


def _measure(row: Row, loader: Any, began: float) -> dict:
    step = _step(row)
    counted, counts_from, expected, is_right = 0, 0.0, 0, True
    for _, labels in loader:
        step()
        is_right = is_right and int(labels[0]) == expected
        expected += len(labels)
        now = time.monotonic()
        if counts_from:
            counted += 1
            if now - counts_from >= row.counts_s:
                break
        elif now - began >= row.settles_s:
            counts_from = now
    rate = counted / (time.monotonic() - counts_from)
    changes = loader.stats().changes if hasattr(loader, "stats") else ()
    found = changes[-1].after if changes else int(min(loader.num_workers, 2))
    return {
        "rate": rate,
        "found": found,
        "changes": len(changes),
        "seconds": _first_with(changes, found, rate),
        "over_time": [(each.batch, each.after) for each in changes],
        "mistake": "" if is_right else "the batches are not those of the sampler",
    }


def _first_with(changes: Any, found: int, rate: float) -> float:
    """About how many seconds passed until there were as many workers as at the end."""
    first = next((each.batch for each in changes if each.after == found), 0)
    return first / rate


def _step(row: Row) -> Any:
    matrix = torch.rand(512, 512)

    def step() -> None:
        if row.step_s:
            time.sleep(row.step_s)
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
    },
)
