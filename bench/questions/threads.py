"""
The number of fetching threads that "auto" finds, beside fixed ones, for samples that wait.

    python -m bench threads
    python -m bench threads --latency 1 --latency 20 --quick

A sample sleeps, and then decodes a JPEG or does nothing. Two workers, batches of 32.
"""

import argparse
import time
import warnings
from statistics import median

import torch
from torch.utils.data import Dataset

from bench.options import parser_of
from bench.questions.streaming.pictures import BATCH, decode, make_jpegs
from bench.report.rows import Rows, add_json_option
from shmloader import DataLoader

_WORKERS, _AHEAD = 2, 4
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
_LATENCIES_MS = (1.0, 5.0, 20.0, 50.0, 200.0)
_EPOCH_S = 1.0  # about, with the best count
_SLOWEST = 0.3  # of the best rate that is possible: a count that cannot reach it is not tried
_DECODES_PER_S, _PLAIN_PER_S = 1000, 40_000  # about, of two workers
_COLUMNS = {
    "ms": "latency_ms",
    "decodes": "decodes",
    **{f"{count}": f"rate_{count}" for count in _COUNTS},
    "auto": "rate_auto",
    "auto / best": "share",
    "its first epoch / best": "share_first",
}


class Waiting(Dataset):
    """Samples that sleep, and then are decoded or are there."""

    def __init__(self, latency_s: float, jpegs: list[bytes], count: int):
        self._latency_s, self._jpegs, self._count = latency_s, jpegs, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor | int:
        time.sleep(self._latency_s)
        return decode(self._jpegs[index % len(self._jpegs)]) if self._jpegs else index


def main(arguments: list[str]) -> int:
    """Print batches per second for each latency and count."""
    options = _options(arguments)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    torch.set_num_threads(1)
    jpegs = make_jpegs(16)
    rows = Rows(_COLUMNS, options.json)
    for decodes in (False, True):
        for latency_ms in options.latency or _LATENCIES_MS:
            rows.add(_record(latency_ms, jpegs if decodes else [], options.repeats))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("threads", __doc__)
    parser.add_argument("--latency", action="append", type=float, help="in ms; may be repeated")
    parser.add_argument("--repeats", type=int, default=5, help="epochs behind the first")
    parser.add_argument("--quick", action="store_true", help="one epoch behind the first")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    options.repeats = 1 if options.quick else options.repeats
    return options


def _record(latency_ms: float, jpegs: list[bytes], repeats: int) -> dict:
    most = _DECODES_PER_S if jpegs else _PLAIN_PER_S
    possible = min(_WORKERS * _COUNTS[-1] / latency_ms * 1e3, most)
    batches = max(8, round(possible * _EPOCH_S / BATCH))
    dataset = Waiting(latency_ms / 1e3, jpegs, batches * BATCH)
    counts: list[int | str] = [
        count for count in _COUNTS if _WORKERS * count / latency_ms * 1e3 >= _SLOWEST * possible
    ]
    first, later = _rates(dataset, [*counts, "auto"], repeats)
    best = max(later[count] for count in counts)
    return {
        "latency_ms": latency_ms,
        "decodes": "yes" if jpegs else "no",
        **{f"rate_{count}": later.get(count) for count in (*_COUNTS, "auto")},
        "share": later["auto"] / best,
        "share_first": first["auto"] / best,
    }


def _rates(
    dataset: Waiting, threads: list[int | str], repeats: int
) -> tuple[dict[int | str, float], dict[int | str, float]]:
    """Measure batches per second of first epochs, and the median of later ones, by turns."""
    loaders = {
        count: DataLoader(
            dataset, batch_size=BATCH, num_workers=_WORKERS, prefetch_factor=_AHEAD,
            persistent_workers=True, fetch_threads=count,
        )
        for count in threads
    }  # fmt: skip
    try:
        first = {count: _rate(loader) for count, loader in loaders.items()}
        turns = [
            {count: _rate(loader) for count, loader in loaders.items()} for _ in range(repeats)
        ]
    finally:
        for loader in loaders.values():
            loader.close()
    return first, {count: median(turn[count] for turn in turns) for count in threads}


def _rate(loader: DataLoader) -> float:
    begin = time.perf_counter()
    count = sum(1 for _ in loader)
    return count / (time.perf_counter() - begin)
