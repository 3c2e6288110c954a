"""
Batches per second and memory while batches are kept, beside torch and beside copying what is kept.

    python -m bench retention
    python -m bench retention --workload imagenet --habit keep_all --repeats 9

A private copy is what a careful user writes against a loader that lends its memory: the same
loader, and a clone of each batch that is kept or of which a view is kept.
"""

import argparse
import ctypes
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any

from bench.batches import assemble, copied, difference
from bench.contenders import ours, torch_fd
from bench.options import parser_of
from bench.questions.habits import HABITS, Keep
from bench.report.rows import Rows, add_json_option
from bench.usage import resources
from bench.workloads import WORKLOADS, Workload, workload

_give_back = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)  # of glibc

# A batch that fits a cache, and one that does not; of the latter fewer, because keep_all keeps all.
_DEFAULT = {"cifar": 200, "imagenet": 20}
_COLUMNS = {
    "workload": "workload",
    "habit": "habit",
    "ours /s": "ours_per_s",
    "torch /s": "torch_per_s",
    "private copy /s": "copy_per_s",
    "times torch": "times_torch",
    "times private copy": "times_copy",
    "ours MB": "ours_mb",
    "torch MB": "torch_mb",
    "of batches": "batches",
    "spilled": "spilled",
    "held": "held",
    "correct": "correct",
}


@dataclass
class Contender:
    """A loader, what is done to a batch before it is kept, and what the timed epochs found."""

    loader: Any
    keep: Keep
    mistake: str | None = None
    per_s: list[float] = field(default_factory=list)
    spilled: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    grown_mb: float = 0.0

    def note(self, epoch: "Epoch") -> None:
        """Add the figures of a timed epoch."""
        self.per_s.append(epoch.per_s)
        self.spilled.append(epoch.spilled)
        self.held.append(epoch.held)


@dataclass
class Epoch:
    """One epoch: batches per second, what was kept, and how often it spilled and what it held."""

    per_s: float
    kept: list
    spilled: int
    held: int


def main(arguments: list[str]) -> int:
    """Print a row per workload and habit; the exit code is 0 if every kept batch was right."""
    options = _options(arguments)
    warnings.simplefilter("ignore")  # the warning about retention is the point here
    rows = Rows(_COLUMNS, options.json)
    correct = True
    for name in options.workload or _DEFAULT:
        batches = options.batches or _DEFAULT.get(name)
        for record in _records(workload(name, batches), options):
            rows.add(record)
            correct = correct and record["correct"]
            for contender, mistake in record["mistakes"].items():
                print(f"WRONG: what {contender} delivered: {mistake}", file=sys.stderr)
    return 0 if correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("retention", __doc__)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="may be repeated")
    parser.add_argument("--habit", action="append", choices=HABITS, help="may be repeated")
    parser.add_argument("--batches", type=int, help="per epoch, instead of the workload's")
    parser.add_argument("--repeats", type=int, default=5, help="timed epochs of each contender")
    parser.add_argument("--workers", type=int, default=2)
    add_json_option(parser)
    return parser.parse_args(arguments)


def _records(chosen: Workload, options: argparse.Namespace) -> Iterator[dict]:
    """Yield a record per habit; the loaders stay open, so that their pages are warm."""
    right = assemble(chosen)
    with ExitStack() as stack:
        lending, torchs = (
            stack.enter_context(closing(_open(each, chosen, options))) for each in (ours, torch_fd)
        )
        for habit in options.habit or HABITS:
            contenders = {
                "ours": Contender(lending, _as_it_is),
                "torch": Contender(torchs, _as_it_is),
                "copy": Contender(lending, copied),
            }
            _alternate(HABITS[habit], list(contenders.values()), right, options.repeats)
            yield {"workload": chosen.name, "habit": habit, **_figures(contenders, len(right))}


def _open(contender, chosen: Workload, options: argparse.Namespace):
    return contender.make_loader(chosen, options.workers, persistent=True, context="fork")


def _alternate(habit: Callable, contenders: list[Contender], right: list, repeats: int) -> None:
    """
    Let the contenders take turns, each epoch checked; neither the first nor the last is timed.

    The last is for memory: what gives free memory back to the machine makes the next epoch slow.
    """
    wanted = habit(iter(right), _as_it_is)
    for turn in range(repeats + 2):
        for place in range(len(contenders)):
            # Another one comes first each time, so that none has the same place throughout.
            contender = contenders[(turn + place) % len(contenders)]
            is_last = turn > repeats
            before_mb = _memory_mb() if is_last else 0.0
            epoch = _epoch(habit, contender, len(right))
            # Before memory is measured: pages that were never read are not mapped.
            contender.mistake = contender.mistake or difference(wanted, epoch.kept)
            if is_last:
                contender.grown_mb = _memory_mb() - before_mb
            elif turn:
                contender.note(epoch)
            del epoch  # and with it all that was kept


def _epoch(habit: Callable, contender: Contender, batches: int) -> Epoch:
    """Time an epoch from iter() to its end; what was kept is dropped later, by the caller."""
    loader = contender.loader
    before = _spilled(loader)
    begin = time.perf_counter()
    kept = habit(iter(loader), contender.keep)
    per_s = batches / (time.perf_counter() - begin)
    held = len(loader.held()) if hasattr(loader, "held") else 0
    return Epoch(per_s, kept, _spilled(loader) - before, held)


def _memory_mb() -> float:
    """Measure what trainer and workers have, once what is free has gone back to the machine."""
    gc.collect()
    _give_back(0)
    held = resources()
    return held["shared_mb"] + held["private_mb"]


def _spilled(loader) -> int:
    return loader.stats().spilled if hasattr(loader, "stats") else 0


def _figures(contenders: dict[str, Contender], batches: int) -> dict:
    """Medians over the timed rounds; ratios are taken within each round."""
    subject = contenders["ours"]
    mistakes = {name: each.mistake for name, each in contenders.items() if each.mistake}
    return {
        **{f"{name}_per_s": median(each.per_s) for name, each in contenders.items()},
        "times_torch": _ratio(subject, contenders["torch"]),
        "times_copy": _ratio(subject, contenders["copy"]),
        "ours_mb": subject.grown_mb,
        "torch_mb": contenders["torch"].grown_mb,
        "batches": batches,
        "spilled": median_low(subject.spilled),
        "held": median_low(subject.held),
        "correct": not mistakes,
        "mistakes": mistakes,
        "rounds_per_s": {name: each.per_s for name, each in contenders.items()},
    }


def _ratio(one: Contender, other: Contender) -> float:
    return median(mine / theirs for mine, theirs in zip(one.per_s, other.per_s, strict=True))


def _as_it_is(batch):
    return batch
