"""
How long next() takes on a ready batch while the workers run pure Python loops.

    python -m bench gil
    python -m bench gil --leaves 4 --loop-ms 50 --calls 500

Loaders take turns. A call counts when its batch was made at least a tenth of a second before it
and every worker was in its loop as it began. Each comes after a pause, in which the workers have
the cores and the caches; some are followed at once by another ("again"). To compare with, there are
the same calls while the workers sleep as long as they would loop, and three controls between our
calls, each after a pause too: a pair of clock readings, a spin of as much CPU time as our next()
takes, and next() of torch's loader without workers, whose batch lies ready in the trainer.
"""

import argparse
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from torch.utils.data import Dataset

from bench.contenders._torch import TorchLoader
from bench.options import parser_of
from bench.questions.loops import Loops
from bench.report.rows import Rows, add_json_option
from shmloader import DataLoader

_DEPTH = 32  # batches ahead per worker: workers have work while what they made ripens
_RIPE_S = 0.1  # torch's worker needs some switches of its GIL to send a batch
_PAUSE_S = 0.002
_SPARE = 4  # batches in an epoch for each call that must count
_AGAIN_EVERY = 5  # turns
_ASLEEP_PART = 4  # of so many calls, one more while workers sleep
_RECENT = 200  # calls whose median a spin lasts

_COLUMNS = {
    "what": "what",
    "calls": "calls",
    "wall ms, median": "wall_ms_p50",
    "p90": "wall_ms_p90",
    "p99": "wall_ms_p99",
    "max": "wall_ms_max",
    "CPU ms, median": "cpu_ms_p50",
    "CPU p99": "cpu_ms_p99",
    "parked": "parked",
    "preempted": "preempted",
    "p99 of the others": "undisturbed_ms_p99",
}


@dataclass
class Calls:
    """The time of each call, and how often the thread slept in it or lost its core."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    def time(self, call: Callable[[], object], counts: bool = True):
        """Make a call and note its time if it counts."""
        before = resource.getrusage(resource.RUSAGE_THREAD)
        cpu_ns, begin_ns = time.thread_time_ns(), time.perf_counter_ns()
        result = call()
        wall_ns, cpu_ns = time.perf_counter_ns() - begin_ns, time.thread_time_ns() - cpu_ns
        after = resource.getrusage(resource.RUSAGE_THREAD)
        if counts:
            self.wall_ms.append(wall_ns / 1e6)
            self.cpu_ms.append(cpu_ns / 1e6)
            self.parked.append(after.ru_nvcsw - before.ru_nvcsw)
            self.preempted.append(after.ru_nivcsw - before.ru_nivcsw)
        return result

    def figures(self) -> dict:
        """Percentiles over all calls, and over those in which the thread kept its core."""
        kept = np.equal(self.parked, 0) & np.equal(self.preempted, 0)
        undisturbed = np.asarray(self.wall_ms)[kept]
        return {
            "calls": len(self.wall_ms),
            **_percentiles("wall_ms", self.wall_ms),
            **_percentiles("cpu_ms", self.cpu_ms),
            "parked": int(np.count_nonzero(self.parked)),
            "preempted": int(np.count_nonzero(self.preempted)),
            "undisturbed_ms_p99": float(np.percentile(undisturbed, 99)) if kept.any() else None,
        }


def main(arguments: list[str]) -> int:
    """Print a row per loader and control; the exit code is 0 if every batch was right."""
    options = _options(arguments)
    calls: dict[str, Calls] = defaultdict(Calls)
    correct = True
    for turn in range(options.rounds):
        # Another one comes first each time.
        for name in ("ours", "torch") if turn % 2 == 0 else ("torch", "ours"):
            for asleep in (False, True):
                correct = _round(name, asleep, calls, options) and correct
    rows = Rows(_COLUMNS, options.json)
    load = {name: getattr(options, name) for name in ("workers", "leaves", "loop_ms")}
    for name in sorted(name for name in calls if calls[name].wall_ms):
        rows.add({"what": name, **load, **calls[name].figures(), "correct": correct})
    return 0 if correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("gil", __doc__)
    parser.add_argument(
        "--calls", type=int, default=2000, help="that count, for each loader, after a pause"
    )
    parser.add_argument("--rounds", type=int, default=4, help="in which the loaders take turns")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--leaves", type=int, default=2, help="tensors in a batch")
    parser.add_argument("--loop-ms", type=float, default=20, help="of pure Python per batch")
    add_json_option(parser)
    return parser.parse_args(arguments)


def _round(name: str, asleep: bool, calls: dict[str, Calls], options: argparse.Namespace) -> bool:
    """Draw ripe batches until enough calls counted. Returns True if all batches were right."""
    title = f"{name}, workers asleep" if asleep else name
    share = options.calls // options.rounds // (_ASLEEP_PART if asleep else 1)
    enough = len(calls[title].wall_ms) + share
    dataset = Loops(share * _SPARE, options.leaves, options.loop_ms / 1e3, options.workers, asleep)
    controls = {} if asleep or name != "ours" else _controls(calls, dataset.make(0))
    right = True
    with closing(_loader(name, dataset, options.workers)) as loader:
        draw = iter(loader).__next__
        for turns in _ripe_turns(dataset):
            # The first one is the first work that its thread ever does.
            counts = turns[0] > 0 and bool(dataset.board.looping.all())
            titles = [title, f"{title}, again"][: len(turns)]
            drawn = [calls[each].time(draw, counts) for each in titles]
            right = right and all(map(dataset.is_right, turns, drawn))
            for control, work in controls.items() if counts else ():
                time.sleep(_PAUSE_S)
                calls[control].time(work)
            if len(calls[title].wall_ms) == enough:
                break
    if not right:
        print(f"WRONG: a batch of {title} is not the dataset's", file=sys.stderr)
    return right


def _loader(name: str, dataset: Dataset, workers: int):
    loader_class = DataLoader if name == "ours" else TorchLoader
    return loader_class(
        dataset, batch_size=None, num_workers=workers, prefetch_factor=_DEPTH,
        persistent_workers=True, multiprocessing_context="fork",
    )  # fmt: skip


def _ripe_turns(dataset: Loops) -> Iterator[range]:
    """Yield the one or two turns to draw next, after a pause and when they are ripe."""
    turn = 0
    while turn < len(dataset):
        turns = range(turn, min(turn + (1 if turn % _AGAIN_EVERY else 2), len(dataset)))
        time.sleep(_PAUSE_S)
        if all(dataset.board.is_ripe(each, _RIPE_S) for each in turns):
            yield turns
            turn = turns.stop


def _controls(calls: dict[str, Calls], batch: list) -> dict[str, Callable]:
    """Make the controls, which are timed between our calls under the same load."""
    ours = calls["ours"].cpu_ms

    def spin() -> None:
        end = time.thread_time_ns() + 1e6 * median(ours[-_RECENT:])
        while time.thread_time_ns() < end:
            pass

    without_workers = iter(TorchLoader(_Prepared(batch), batch_size=None))
    return {
        "control: nothing": lambda: None,
        "control: spin": spin,
        "control: no workers": without_workers.__next__,
    }


class _Prepared(Dataset):
    """One ready batch, again and again."""

    def __init__(self, batch: list):
        self._batch = batch

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> list:
        return self._batch


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    points = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {f"{name}_{key}": float(np.percentile(values, at)) for key, at in points.items()}
