"""
How much of the processor time that a training step wants its workers take, with `nice` and without.

    python -m bench polite
    python -m bench polite --rounds 5

The step multiplies matrices with two threads on two cores. Two workers compute too, for longer than
the step takes, so that they never have enough ahead and want both cores all the time. Ours with the
option `nice`, and torch's with the same niceness by os.nice in its worker_init_fn, take turns with
the step alone. What workers run while next() waits costs the step nothing and does not count.
"""

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Self

import torch
from torch.utils.data import Dataset

import shmloader
from bench.contenders._torch import TorchLoader
from bench.options import parser_of
from bench.report.rows import Rows, add_json_option
from bench.usage import cpu_s, process_ids
from shmloader.processes import scheduling

_CORES = 2
_WORKERS = 2
_DEPTH = 8
_BATCH = 4
_SIDE = 1024  # of the matrices
_SAMPLE_S = 0.05  # of processor time: a batch takes longer than a step even on a core of its own
_STEP_S = 0.08
_NICE = 0, 19

_COLUMNS = {
    "loader": "loader",
    "nice": "nice",
    "workers take": "taken",
    "of rounds": "range",
    "not got in all": "delayed",
    "ms per step": "ms_per_step",
    "times alone": "times_alone",
    "correct": "correct",
}


# A loader and its niceness.
Case = tuple[str, int | str]
_ALONE: Case = ("none", "-")


class Computed(Dataset):
    """Samples (64,) float32, all equal to the index, each after computing for a while."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.process_time() + _SAMPLE_S
        while time.process_time() < until:
            sum(range(1000))
        return torch.full((64,), float(index))


@dataclass(frozen=True)
class Clocks:
    """Seconds so far: by the wall, of this process computing and ready to, of workers computing."""

    wall_s: float
    own_s: float
    delayed_s: float
    workers_s: float

    @classmethod
    def read(cls, workers: list[int]) -> Self:
        """Read them; a thread of this process that ends takes its part along."""
        threads = [scheduling.scheduled_ns(int(each)) for each in os.listdir("/proc/self/task")]
        return cls(
            time.perf_counter(),
            time.process_time(),
            sum(delayed for _, delayed in threads) / 1e9,
            sum(map(cpu_s, workers)),
        )

    def since(self, begin: Self) -> "Clocks":
        """Subtract what there was at the beginning."""
        return Clocks(
            *(getattr(self, each.name) - getattr(begin, each.name) for each in fields(self))
        )


@dataclass
class Run:
    """The steps of one run, and whether its batches were right."""

    steps: list[Clocks]
    is_right: bool = True

    def total(self, name: str) -> float:
        """Sum one of the clocks over the steps."""
        return sum(getattr(step, name) for step in self.steps)

    @property
    def step_s(self) -> float:
        """How long the median step took."""
        return median(step.wall_s for step in self.steps)

    @property
    def taken(self) -> float:
        """
        The part of the processor time that the steps wanted which workers took.

        A step wants what its threads run, and what they are ready to run and find no core for. Of
        the latter workers took as much as they ran; what other programs took counts up to that.
        """
        taken_s = sum(min(step.workers_s, step.delayed_s) for step in self.steps)
        return taken_s / (self.total("own_s") + self.total("delayed_s"))

    @property
    def delayed(self) -> float:
        """The part of the processor time that the steps wanted which they did not get."""
        delayed_s = self.total("delayed_s")
        return delayed_s / (self.total("own_s") + delayed_s)


def main(arguments: list[str]) -> int:
    """Print a row for the step alone, and for each loader and niceness; 0 if all was right."""
    options = _options(arguments)
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < _CORES:
        sys.exit(f"bench polite is about {_CORES} cores, and this process may use {len(usable)}")
    os.sched_setaffinity(0, usable[:_CORES])  # before torch starts the threads of its steps
    torch.set_num_threads(_CORES)
    rows = Rows(_COLUMNS, options.json)
    found = _rounds(_step(), options)
    for case, runs in found.items():
        rows.add(_row(case, runs, found[_ALONE]))
    return 0 if all(run.is_right for runs in found.values() for run in runs) else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("polite", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each loader and niceness")
    parser.add_argument("--steps", type=int, default=15, help="steps of each run")
    add_json_option(parser)
    return parser.parse_args(arguments)


def _step() -> Callable[[], None]:
    """Make a step that takes about as long as it should when it is alone."""
    left, right = torch.rand(2, _SIDE, _SIDE)
    out = torch.empty_like(left)

    def multiply(times: int) -> float:
        begin = time.process_time()
        for _ in range(times):
            torch.mm(left, right, out=out)
        return time.process_time() - begin

    multiply(3)
    # Processor time, because other programs make it no longer.
    once_s = min(multiply(1) for _ in range(10)) / _CORES
    return functools.partial(multiply, max(1, round(_STEP_S / once_s)))


def _rounds(step: Callable[[], None], options: argparse.Namespace) -> dict[Case, list[Run]]:
    """Let the step alone and the loaders take turns, another one first each time."""
    cases = [_ALONE, *((loader, nice) for nice in _NICE for loader in _LOADERS)]
    found: dict[Case, list[Run]] = {case: [] for case in cases}
    for turn in range(options.rounds):
        first = turn % len(cases)
        for case in cases[first:] + cases[:first]:
            found[case].append(_run(case, step, options.steps))
    return found


def _run(case: Case, step: Callable[[], None], steps: int) -> Run:
    if case == _ALONE:
        return Run([_timed(step, []) for _ in range(steps)])
    with closing(_LOADERS[case[0]](case[1])) as loader:
        batches = iter(loader)
        run = Run([])
        for number in range(steps):
            batch = next(batches)
            run.steps.append(_timed(step, process_ids()[1]))
            run.is_right = run.is_right and _is_right(number, batch)
        del batches
    return run


def _timed(step: Callable[[], None], workers: list[int]) -> Clocks:
    begin = Clocks.read(workers)
    step()
    return Clocks.read(workers).since(begin)


def _is_right(number: int, batch: torch.Tensor) -> bool:
    wanted = torch.arange(number * _BATCH, (number + 1) * _BATCH, dtype=torch.float32)
    return torch.equal(batch, wanted[:, None].expand(-1, 64))


def _row(case: Case, runs: list[Run], alone: list[Run]) -> dict[str, Any]:
    """Medians over the rounds; a ratio is taken within its round."""
    shares = sorted(run.taken for run in runs)
    slower = [run.step_s / other.step_s for run, other in zip(runs, alone, strict=True)]
    return {
        "loader": case[0],
        "nice": case[1],
        "taken": f"{median(shares):.1%}",
        "range": f"{shares[0]:.1%} to {shares[-1]:.1%}",
        "delayed": f"{median(run.delayed for run in runs):.1%}",
        "ms_per_step": 1e3 * median(run.step_s for run in runs),
        "times_alone": median(slower),
        "correct": all(run.is_right for run in runs),
        "shares": shares,
        "slower": slower,
    }


def _make(kind: type, **options: Any) -> Any:
    return kind(Computed(), _BATCH, num_workers=_WORKERS, prefetch_factor=_DEPTH, **options)


def be_nice(nice: int, _: int) -> None:
    """What a user of torch's writes for this."""
    os.nice(nice)


_LOADERS = {
    "ours": lambda nice: _make(shmloader.DataLoader, nice=nice),
    "torch": lambda nice: _make(TorchLoader, worker_init_fn=functools.partial(be_nice, nice)),
}
