"""
The permutation with which a shuffled epoch begins: torch's own, and ours of the same numbers.

    python -m bench permutations
    python -m bench permutations --samples 1281167 --rounds 20

*skipped* is what torch's sampler draws once more at an epoch's end, of a generator of the user's:
ours only leaves the generator as it would be. CPU time of the process; medians of rounds by turns.
"""

import argparse
import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from bench.options import parser_of
from bench.report.rows import Rows, add_json_option
from shmloader.trainer.permutations import permutation, skip_permutation

_SAMPLES = (10_000, 1_000_000, 10_000_000, 100_000_000)
_COLUMNS = {
    "samples": "samples",
    "torch ms": "torch_ms",
    "ours ms": "ours_ms",
    "skipped ms": "skipped_ms",
    "times torch": "times_torch",
    "correct": "correct",
}


def main(arguments: list[str]) -> int:
    """Print a row per number of samples; the exit code is 0 if all were drawn alike."""
    options = _options(arguments)
    torch.set_num_threads(1)
    rows = Rows(_COLUMNS, options.json)
    is_correct = True
    for samples in options.samples or _SAMPLES:
        record = _record(samples, options.rounds)
        is_correct &= record["correct"]
        rows.add(record)
    return 0 if is_correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("permutations", __doc__)
    parser.add_argument("--samples", action="append", type=int, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="behind a first one")
    add_json_option(parser)
    return parser.parse_args(arguments)


def _record(samples: int, rounds: int) -> dict:
    theirs, own, skipping = (torch.Generator().manual_seed(5) for _ in range(3))
    times: dict[str, list[float]] = {"torch": [], "ours": [], "skipped": []}
    is_correct = True
    for _ in range(1 + rounds):
        drawn = _timed(times["torch"], torch.randperm, samples, generator=theirs)
        found = _timed(times["ours"], permutation, samples, own)
        _timed(times["skipped"], skip_permutation, samples, skipping)
        is_correct &= torch.equal(drawn, torch.from_numpy(found))
        states = [generator.get_state() for generator in (theirs, own, skipping)]
        is_correct &= all(torch.equal(states[0], state) for state in states)
        del drawn, found
    theirs_ms, own_ms, skipped_ms = (1e3 * median(each[1:]) for each in times.values())
    return {
        "samples": samples,
        "torch_ms": theirs_ms,
        "ours_ms": own_ms,
        "skipped_ms": skipped_ms,
        "times_torch": theirs_ms / own_ms,
        "correct": is_correct,
    }


def _timed(times: list[float], draw: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    gc.collect()
    before = time.process_time()
    drawn = draw(*arguments, **options)
    times.append(time.process_time() - before)
    return drawn
