"""
Seconds per batch of large and small ndarrays as workers are added, beside torch and the limit.

    python -m bench scaling
    python -m bench scaling --size large --workers 8 --repeats 5

The limit: the same workers fetch and drop what they fetched, and the trainer takes the same step
for each batch that is complete.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from statistics import median

from bench.batches import touch
from bench.contenders._torch import TorchLoader
from bench.questions.records import BATCH, PREFETCH, FetchOnly, Records, Replay
from bench.report.rows import Rows, add_json_option
from bench.workloads import keep_list
from shmloader import DataLoader

_SHAPES = {"small": (10, 150), "large": (1000, 150)}
_WORKERS = (2, 4, 6, 8)
_BATCHES, _DROPPED = 20, 5  # the ring of 8 workers has 36 slots: each batch fills one anew
_STEP_S = 0.05

_COLUMNS = {
    "size": "size",
    "workers": "workers",
    "ours, s": "ours_s",
    "torch, s": "torch_s",
    "limit, s": "limit_s",
    "step, s": "step_s",
    "times torch": "times_torch",
    "ours / max(limit, step)": "over_limit",
    "lowest": "over_limit_min",
    "highest": "over_limit_max",
    "correct": "correct",
}


def main(arguments: list[str]) -> int:
    """Print a row per size and number of workers; the exit code is 0 if every batch was right."""
    options = _options(arguments)
    # More workers than cores is what is measured here.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    rows = Rows(_COLUMNS, options.json)
    correct = True
    for size in options.size or _SHAPES:
        replay = Replay(_SHAPES[size])
        for workers in options.workers or ((2, 8) if options.quick else _WORKERS):
            record = {"size": size, "workers": workers, **_record(size, workers, options, replay)}
            rows.add(record)
            correct = correct and record["correct"]
    return 0 if correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", action="append", choices=_SHAPES, help="may be repeated")
    parser.add_argument("--workers", action="append", type=int, help="may be repeated")
    parser.add_argument("--repeats", type=int, help="rounds in which all take turns, default 3")
    parser.add_argument("--batches", type=int, default=_BATCHES, help="per epoch")
    parser.add_argument("--quick", action="store_true", help="2 and 8 workers, one round")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    if options.batches <= _DROPPED:
        parser.error(f"--batches: the first {_DROPPED} are dropped, so more are needed")
    options.repeats = options.repeats or (1 if options.quick else 3)
    return options


def _record(size: str, workers: int, options: argparse.Namespace, replay: Replay) -> dict:
    """Let the contenders take turns, each starting its workers anew; medians over the rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in _MAKERS}
    mistakes = {}
    names = list(_MAKERS)
    for turn in range(options.repeats):
        for place in range(len(names)):
            # Another one comes first each time, so that none has the same place throughout.
            name = names[(turn + place) % len(names)]
            loader = _MAKERS[name](_SHAPES[size], workers)
            taken, mistake = _epoch(loader, workers, options.batches, replay)
            seconds[name].append(taken)
            if mistake:
                mistakes[name] = mistake
                print(f"WRONG: {name}, {size}, {workers} workers: {mistake}", file=sys.stderr)
    return {**_figures(seconds), "correct": not mistakes, "mistakes": mistakes}


def _epoch(loader, workers: int, batches: int, replay: Replay) -> tuple[float, str | None]:
    """Take the batches with a step for each; compare their touches off the clock."""
    with closing(loader):
        seconds, touches, last = _timed(islice(loader, batches))
        return seconds, None if last is None else replay.mistake(workers, touches, last)


def _timed(batches: Iterator) -> tuple[float, list, list | None]:
    """Return seconds per batch from the end of the dropped first steps to that of the last step."""
    done, touches, batch = [], [], None
    for batch in batches:
        if batch is not None:
            touches.append(touch(batch))
        time.sleep(_STEP_S)
        done.append(time.perf_counter())
    return (done[-1] - done[_DROPPED - 1]) / (len(done) - _DROPPED), touches, batch


def _figures(seconds: dict[str, list[float]]) -> dict:
    """Medians, and the ratios that are taken within each round."""
    rounds = list(zip(seconds["ours"], seconds["torch"], seconds["limit"], strict=True))
    over = [ours / max(limit, _STEP_S) for ours, _, limit in rounds]
    return {
        **{f"{name}_s": median(taken) for name, taken in seconds.items()},
        "step_s": _STEP_S,
        "times_torch": median(torchs / ours for ours, torchs, _ in rounds),
        "over_limit": median(over),
        "over_limit_min": min(over),
        "over_limit_max": max(over),
        "rounds_s": seconds,
    }


def _loader(loader_class: type):
    def make(shape: tuple[int, int], workers: int):
        return loader_class(
            Records(shape), batch_size=BATCH, num_workers=workers, prefetch_factor=PREFETCH,
            collate_fn=keep_list, persistent_workers=True, multiprocessing_context="fork",
        )  # fmt: skip

    return make


_MAKERS = {"ours": _loader(DataLoader), "torch": _loader(TorchLoader), "limit": FetchOnly}
