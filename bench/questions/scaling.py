"""
Seconds per batch of large and small ndarrays as workers are added, beside torch and the limit.

    python -m bench scaling
    python -m bench scaling --size large --workers 8 --repeats 5
    python -m bench scaling --size large --workers 8 --context spawn

The limit: the same workers fetch and drop what they fetched, and the trainer takes the same step
for each batch that is complete. Each loader is passed through twice: in the first pass slots get
their pages, and what the machine itself takes for these is measured in the same round.
"""

import argparse
import sys
import time
import warnings
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median

from bench.batches import touch
from bench.contenders._torch import TorchLoader
from bench.options import parser_of
from bench.questions.first_pages import PAGE_BYTES, prices_ns
from bench.questions.records import BATCH, PREFETCH, FetchOnly, Records, Replay
from bench.report.rows import Rows, add_json_option
from bench.run import CONTEXTS
from bench.workloads import keep_list
from shmloader import DataLoader

_SHAPES = {"small": (10, 150), "large": (1000, 150)}
_WORKERS = (2, 4, 6, 8)
_BATCHES, _DROPPED = 20, 5  # 8 workers are asked for 32 batches ahead: each fills a slot anew
_PASSES = 2
_STEP_S = 0.05

_COLUMNS = {
    "size": "size",
    "workers": "workers",
    "start method": "context",
    "pass": "pass",
    "ours, s": "ours_s",
    "torch, s": "torch_s",
    "limit, s": "limit_s",
    "step, s": "step_s",
    "first pages": "first_pages",
    "small page, ns": "small_ns",
    "in huge ones, ns": "huge_ns",
    "limit + pages, s": "bound_s",
    "times torch": "times_torch",
    "ours / max(limit, step)": "over_limit",
    "ours / max(limit + pages, step)": "over_bound",
    "lowest": "over_bound_min",
    "highest": "over_bound_max",
    "correct": "correct",
}


@dataclass(frozen=True)
class _Pass:
    """What one pass took per batch, after the dropped ones, and what is compared afterwards."""

    seconds: float
    first_pages: float
    touches: list
    last: list | None


def main(arguments: list[str]) -> int:
    """Print a row per size, number of workers and pass; the exit code is 0 if all was right."""
    options = _options(arguments)
    # More workers than cores is what is measured here.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    rows = Rows(_COLUMNS, options.json)
    correct = True
    for size in options.size or _SHAPES:
        replay = Replay(_SHAPES[size])
        for workers in options.workers or ((2, 8) if options.quick else _WORKERS):
            about = {"size": size, "workers": workers, "context": options.context}
            for record in _records(size, workers, options, replay):
                rows.add({**about, **record})
                correct = correct and record["correct"]
    return 0 if correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("scaling", __doc__)
    parser.add_argument("--size", action="append", choices=_SHAPES, help="may be repeated")
    parser.add_argument("--workers", action="append", type=int, help="may be repeated")
    parser.add_argument("--context", default="fork", choices=CONTEXTS, help="start method")
    parser.add_argument("--repeats", type=int, help="rounds in which all take turns, default 3")
    parser.add_argument("--batches", type=int, default=_BATCHES, help="per pass")
    parser.add_argument("--quick", action="store_true", help="2 and 8 workers, one round")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    if options.batches <= _DROPPED:
        parser.error(f"--batches: the first {_DROPPED} are dropped, so more are needed")
    options.repeats = options.repeats or (1 if options.quick else 3)
    return options


def _records(size: str, workers: int, options: argparse.Namespace, replay: Replay) -> list[dict]:
    """Let the contenders take turns, each starting its workers anew; one record for each pass."""
    rounds: list[list[dict]] = [[] for _ in range(_PASSES)]
    mistakes = {}
    names = list(_MAKERS)
    for turn in range(options.repeats):
        prices = prices_ns(workers)
        passes = {}
        # Another one comes first each time, so that none has the same place throughout.
        for name in (names[(turn + place) % len(names)] for place in range(len(names))):
            loader = _MAKERS[name](_SHAPES[size], workers, options.context)
            passes[name], mistake = _passes(loader, workers, options.batches, replay)
            if mistake:
                mistakes[name] = mistake
                print(f"WRONG: {name}, {size}, {workers} workers: {mistake}", file=sys.stderr)
        for number, found in enumerate(rounds):
            found.append(_round({name: passes[name][number] for name in names}, prices))
    verdict = {"correct": not mistakes, "mistakes": mistakes}
    return [{"pass": n, **_figures(found), **verdict} for n, found in enumerate(rounds, 1)]


def _passes(loader, workers: int, batches: int, replay: Replay) -> tuple[list, str | None]:
    """Take the batches of each pass with a step for each; compare their touches off the clock."""
    with closing(loader):
        passes = [_timed(loader, batches) for _ in range(_PASSES)]
        # Not between the passes: meanwhile workers would fill the rest of the slots.
        mistakes = [
            replay.mistake(workers, taken.touches, taken.last)
            for taken in passes
            if taken.last is not None
        ]
        return passes, next(filter(None, mistakes), None)


def _timed(loader, batches: int) -> _Pass:
    """Measure from the end of the dropped first steps to that of the last step."""
    done, slots, touches, batch = [], [], [], None
    for batch in islice(loader, batches):
        if batch is not None:
            touches.append(touch(batch))
        time.sleep(_STEP_S)
        done.append(time.perf_counter())
        slots.append(_slots_bytes(loader))
    counted = len(done) - _DROPPED
    added_bytes = sum(_growth(*pair) for pair in pairwise(slots[_DROPPED - 1 :]))
    return _Pass(
        seconds=(done[-1] - done[_DROPPED - 1]) / counted,
        first_pages=added_bytes / PAGE_BYTES / counted,
        touches=touches,
        last=batch,
    )


def _slots_bytes(loader) -> list[int]:
    """List the bytes of pages that each slot has; other loaders have no slots."""
    if not isinstance(loader, DataLoader):
        return []
    ledger = loader._iterator._segment.ledger
    return [ledger.pages_bytes(slot) for slot in range(ledger.slots + ledger.spares)]


def _growth(before: list[int], after: list[int]) -> int:
    """Sum what slots got; the change of the whole would hide it if others gave pages back."""
    return sum(max(0, now - then) for then, now in zip(before, after, strict=True))


def _round(passes: dict[str, _Pass], prices: dict[str, float | None]) -> dict:
    """The figures of one pass of all contenders, and the ratios between them."""
    ours, torchs, limit = (passes[name].seconds for name in ("ours", "torch", "limit"))
    first_pages = passes["ours"].first_pages
    bound = limit + first_pages * _cheapest_ns(prices) / 1e9
    return {
        "ours_s": ours,
        "torch_s": torchs,
        "limit_s": limit,
        "first_pages": first_pages,
        "small_ns": prices["small"],
        "huge_ns": prices["huge"],
        "bound_s": bound,
        "times_torch": torchs / ours,
        "over_limit": ours / max(limit, _STEP_S),
        "over_bound": ours / max(bound, _STEP_S),
    }


def _cheapest_ns(prices: dict[str, float | None]) -> float:
    return min(price for price in prices.values() if price is not None)


def _figures(rounds: list[dict]) -> dict:
    """Medians over the rounds, and how far the last ratio spreads."""
    over = [found["over_bound"] for found in rounds]
    return {
        **{name: _middle([found[name] for found in rounds]) for name in rounds[0]},
        "step_s": _STEP_S,
        "over_bound_min": min(over),
        "over_bound_max": max(over),
        "rounds": rounds,
    }


def _middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _loader(loader_class: type):
    def make(shape: tuple[int, int], workers: int, context: str):
        return loader_class(
            Records(shape), batch_size=BATCH, num_workers=workers, prefetch_factor=PREFETCH,
            collate_fn=keep_list, persistent_workers=True, multiprocessing_context=context,
        )  # fmt: skip

    return make


_MAKERS = {"ours": _loader(DataLoader), "torch": _loader(TorchLoader), "limit": FetchOnly}
