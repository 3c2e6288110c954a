"""
What following `tune` brings: two loops as they are and with its options, beside torch's loader.

    python -m bench tune
    python -m bench tune --loop records --rounds 5

The loops are those of two complaints: many small arrays from a stream, each of which takes a while,
and samples of which one in a hundred takes 50 times as long as the others. The step sleeps. Each
round runs both loaders with both settings, the other loader first each time; torch takes those
options that it has. Rates are those behind the start, and the batches are checked.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice
from statistics import median
from typing import Any

import numpy
import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import shmloader
from bench.options import parser_of
from bench.report.rows import Rows, add_json_option

_COLUMNS = {
    "loop": "loop",
    "options": "options",
    "loader": "loader",
    "batches/s": "batches_per_s",
    "waits": "waits",
    "times as it was": "times_before",
    "times torch": "times_torch",
    "correct": "correct",
}
Check = Callable[[Any], bool]

_LOADERS = {"shmloader": shmloader.DataLoader, "torch": torch.utils.data.DataLoader}
_TORCHS = ("num_workers", "prefetch_factor")  # of what `tune` says, what torch's loader takes
_BEFORE, _AFTER = "as it was", "as tune says"


class Records(IterableDataset):
    """Small arrays without end, each after 3 ms; each worker has a stream of its own."""

    def __iter__(self) -> Iterator[numpy.ndarray]:
        """Yield this worker's stream."""
        for record in stream(get_worker_info().id):
            time.sleep(0.003125)
            yield record


def stream(worker: int) -> Iterator[numpy.ndarray]:
    """Make a worker's records, always the same."""
    generator = numpy.random.default_rng(worker)
    while True:
        yield generator.random((10, 150))


class HeavyTail(Dataset):
    """Samples of 2 ms, of which one in 100 takes 100 ms."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.1 if index * 7919 % 100 == 3 else 0.002)
        return torch.full((64,), float(index))


def as_it_is(samples: list[Any]) -> list[Any]:
    """Collate nothing."""
    return samples


def records_right(workers: int) -> Check:
    """Make a check of batches in their order, of which each worker has every n-th one."""
    streams = cycle([stream(worker) for worker in range(workers)])
    return lambda batch: all(map(numpy.array_equal, batch, next(streams)))


def samples_right(_: int) -> Check:
    """Make a check of batches in their order."""
    indices = count()

    def is_right(batch: Any) -> bool:
        expected = [float(index) for index in islice(indices, len(batch))]
        return torch.equal(torch.tensor(expected)[:, None].expand(-1, 64), batch)

    return is_right


@dataclass(frozen=True)
class Loop:
    """
    A loop to tune.

    Attributes:
        dataset: Makes what it loads.
        options: Of its loader, as it was.
        step_s: Seconds that its step takes.
        check: Makes, for a number of workers, what says of each batch in turn if it is right.
    """

    dataset: Callable[[], Any]
    options: dict[str, Any]
    step_s: float
    check: Callable[[int], Check]


LOOPS = {
    "records": Loop(
        Records,
        {"batch_size": 128, "num_workers": 2, "prefetch_factor": 4, "collate_fn": as_it_is},
        0.05,
        records_right,
    ),
    "heavy tail": Loop(
        HeavyTail,
        {"batch_size": 8, "num_workers": 2, "prefetch_factor": 2},
        0.016,
        samples_right,
    ),
}


def main(arguments: list[str]) -> int:
    """Print four rows per loop; the exit code is 0 if every batch was right."""
    options = _options(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    rows = Rows(_COLUMNS, options.json)
    lines = []
    is_right = True
    for name in options.loop or LOOPS:
        loop = LOOPS[name]
        found = shmloader.tune(lambda loop=loop: _make(loop, "shmloader"), loop.step_s, seconds=15)
        lines.append(f"{name}: {found.line}")
        for row in _rows(name, loop, found.options, options):
            rows.add(row)
            is_right = is_right and row["correct"]
    print("\n" + "\n".join(lines))
    return 0 if is_right else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("tune", __doc__)
    parser.add_argument("--loop", action="append", choices=LOOPS, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each loader and setting")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run, behind its start")
    add_json_option(parser)
    return parser.parse_args(arguments)


def _make(loop: Loop, loader: str, **changed: Any) -> Any:
    return _LOADERS[loader](loop.dataset(), **{**loop.options, **changed})


def _rows(
    name: str, loop: Loop, tuned: dict[str, Any], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    settings = {_BEFORE: {}, _AFTER: tuned}
    runs: dict[tuple[str, str], list[tuple[float, float, bool]]] = {}
    for turn in range(options.rounds):
        for loader in sorted(_LOADERS, reverse=turn % 2 == 1):
            for setting, changed in settings.items():
                known = changed if loader == "shmloader" else _known_to_torch(changed)
                run = _run(loop, loader, known, options.seconds)
                runs.setdefault((setting, loader), []).append(run)
    for setting in settings:
        for loader in _LOADERS:
            found = runs[setting, loader]
            yield {
                "loop": name,
                "options": _said(loop, settings[setting]),
                "loader": loader,
                "batches_per_s": median(rate for rate, _, _ in found),
                "waits": f"{median(share for _, share, _ in found):.0%}",
                "times_before": _ratio(found, runs[_BEFORE, loader]),
                "times_torch": _ratio(found, runs[setting, "torch"]),
                "correct": all(is_right for _, _, is_right in found),
                "rates": [rate for rate, _, _ in found],
            }


def _known_to_torch(changed: dict[str, Any]) -> dict[str, Any]:
    return {name: changed[name] for name in _TORCHS if name in changed}


def _said(loop: Loop, changed: dict[str, Any]) -> str:
    options = {**loop.options, **changed}
    return ", ".join(
        f"{each}={options[each]}" for each in (*_TORCHS, "assignment") if each in options
    )


def _ratio(own: list[tuple[float, float, bool]], other: list[tuple[float, float, bool]]) -> float:
    """The median of the ratios of rates, each within its round."""
    pairs = zip(own, other, strict=True)
    return median(one[0] / rival[0] for one, rival in pairs)


def _run(
    loop: Loop, loader: str, changed: dict[str, Any], seconds: float
) -> tuple[float, float, bool]:
    """Run a loop behind its start; its rate, the share of waiting, and True if all was right."""
    made = _make(loop, loader, **changed)
    workers, depth = made.num_workers, made.prefetch_factor
    started = workers * depth + workers  # what was ordered at the start, and once more
    check = loop.check(workers)
    is_right, waited_s, timed = True, 0.0, 0
    begun = before = time.perf_counter()
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
    if loader == "shmloader":
        made.close()
    return timed / elapsed_s, waited_s / elapsed_s, is_right
