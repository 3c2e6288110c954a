"""
Pictures from an HTTP server that waits before each answer: few workers, many, and threads.

    python -m bench streaming
    python -m bench streaming --link 20 --quick

Every row runs in a process of its own; every batch is compared with a plain loop's. glibc keeps
what the step frees in all of them: whether it does so by itself is chance, and else a step takes up
to twice its time for pages of the kernel.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from bench.driver import alone
from bench.loads.jpegs import DISTINCT, Get, make_jpegs
from bench.questions.streaming.run import BATCH, Row, right_checksums
from bench.questions.streaming.server import serving

_ROWS = (
    Row("torch, 2 workers", "torch", 2),
    Row("torch, 2 workers, prefetch 8", "torch", 2, prefetch=8),
    Row("torch, 8 workers", "torch", 8),
    Row("torch, 8 workers, prefetch 8", "torch", 8, prefetch=8),
    Row("torch, 2 workers, downloaded first", "torch", 2, downloads="first"),
    Row("ours, 2 workers", "ours", 2),
    Row("ours, 8 workers", "ours", 8),
    Row("ours, 2 workers, 8 threads", "ours", 2, threads=8, epochs=3),
    Row("ours, 2 workers, 32 threads", "ours", 2, threads=32, epochs=3),
    Row("ours, 2, 32 threads, downloaded()", "ours", 2, threads=32, downloads="kept", epochs=3),
)
_NAMED = {row.name: row for row in _ROWS}
COLUMNS = {
    "loader": "name",
    "download, s": "download_s",
    "first epoch, s": "first_s",
    "best of two later ones, s": "later_s",
    "batches/s": "rate",
    "at latency 0": "rate_0",
    "in flight / latency": "rate_in_flight",
    "of the bound": "share",
    "warnings": "warnings",
    "correct": "correct",
}
_KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "33554432"}
_TURNS = 3  # of each of the two rates that are compared
_LONGEST_S = 120


def records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row for each way to load; it is right if all batches were, without a warning."""
    jpegs = make_jpegs(DISTINCT)
    size = sum(map(len, jpegs)) / len(jpegs)
    right = right_checksums(options.pictures)
    link = None if options.link is None else options.link * 1e6
    with serving(jpegs, link) as port:
        latency_s = _latency_s(Get(port, options.latency))
        print(
            f"{options.pictures} JPEGs of {size / 1e3:.1f} kB on average; the server waits "
            f"{options.latency:g} ms, a GET alone takes {latency_s * 1e3:.1f} ms\n"
        )
        link_rate = None if link is None else link / size / BATCH
        for name in options.row or _NAMED:
            row = replace(_NAMED[name], port=port, count=options.pictures)
            yield _record(row, options.latency, latency_s, link_rate, right)


def end(_: argparse.Namespace, found: dict[str, list[dict]]) -> bool:
    """Returns True if nothing was warned of."""
    return not any(record["warnings"] for record in found["streaming"])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--row", action="append", choices=_NAMED, help="may be repeated")
    parser.add_argument("--pictures", type=int, default=999, help="in an epoch")
    parser.add_argument("--latency", type=float, default=20.0, help="the server's, in ms")
    parser.add_argument("--link", type=float, help="most MB that the server sends in a second")
    quick = {"dest": "pictures", "action": "store_const", "const": 320}
    parser.add_argument("--quick", help="320 pictures", **quick)


def _latency_s(get: Get) -> float:
    times = []
    for number in range(20):
        begin = time.perf_counter()
        get(number)
        times.append(time.perf_counter() - begin)
    return median(times)


def _record(
    row: Row, latency_ms: float, latency_s: float, link_rate: float | None, right: list[int]
) -> dict:
    ran = _run(row, latency_ms)
    seconds = [epoch["seconds"] for epoch in ran["epochs"]]
    fastest_s = min(seconds[-2:])
    rates = {"rate": len(right) / fastest_s, "rate_0": None, "rate_in_flight": None, "share": None}
    if row.loader == "ours" and row.threads and not row.downloads:
        # In turns: a noisy minute must not hit one of them alone.
        at_0, at_latency = [_later_s(row, 0)], [fastest_s]
        for _ in range(_TURNS - 1):
            at_latency.append(_later_s(row, latency_ms))
            at_0.append(_later_s(row, 0))
        rates["rate"], rates["rate_0"] = len(right) / min(at_latency), len(right) / min(at_0)
        rates["rate_in_flight"] = row.in_flight / latency_s / BATCH
        bounds = [rates["rate_0"], rates["rate_in_flight"], link_rate]
        rates["share"] = rates["rate"] / min(bound for bound in bounds if bound is not None)
    return {
        "name": row.name,
        "download_s": ran["download_s"] if row.downloads == "first" else None,
        "first_s": seconds[0],
        "later_s": min(seconds[1:], default=None),
        **rates,
        "warnings": ran["warnings"],
        "correct": all(epoch["checksums"] == right for epoch in ran["epochs"]),
    }


def _later_s(row: Row, latency_ms: float) -> float:
    return min(epoch["seconds"] for epoch in _run(row, latency_ms)["epochs"][1:])


def _run(row: Row, latency_ms: float) -> dict:
    """Run a row; each line that it wrote to stderr counts as a warning."""
    with tempfile.TemporaryDirectory() as folder:
        given = replace(row, latency_ms=latency_ms, folder=folder)
        ran, said = alone(given, _LONGEST_S, **_KEEPS_MEMORY)
    told = [line for line in said.splitlines() if line and not line.startswith(" ")]
    for line in told:
        print(f"{row.name}: {line}", file=sys.stderr)
    return {**ran, "warnings": len(told)}
