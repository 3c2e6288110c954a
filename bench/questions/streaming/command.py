"""
Pictures from an HTTP server that waits before each answer: few workers, many, and threads.

    python -m bench streaming
    python -m bench streaming --link 20 --quick

Every row runs in a process of its own; every batch is compared with a plain loop's. glibc keeps
what the step frees in all of them: whether it does so by itself is chance, and else a step takes up
to twice its time for pages of the kernel.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.options import parser_of
from bench.questions.streaming.pictures import BATCH, Get, make_jpegs, right_checksums
from bench.questions.streaming.run import Row, command
from bench.questions.streaming.server import serving
from bench.report.machine import CHECKOUT
from bench.report.rows import Rows, add_json_option

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
    Row("ours, 2 workers, auto", "ours", 2, threads="auto", epochs=3),
    Row("ours, 2, auto, overlap_epochs", "ours", 2, threads="auto", epochs=3, overlaps=True),
    Row("ours, 8 workers, auto", "ours", 8, threads="auto", epochs=3),
    Row("ours, 2, auto, downloaded()", "ours", 2, threads="auto", downloads="kept", epochs=3),
)
_NAMED = {row.name: row for row in _ROWS}
_COLUMNS = {
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
_DISTINCT = 64
# What torch says of more workers than cores, at both loaders: it is about the machine.
_ADVICE = "This DataLoader will create"


def main(arguments: list[str]) -> int:
    """Print a row for each way to load; the exit code is 0 if all batches were right."""
    options = _options(arguments)
    jpegs = make_jpegs(_DISTINCT)
    size = sum(map(len, jpegs)) / len(jpegs)
    right = right_checksums(jpegs, options.pictures)
    link = None if options.link is None else options.link * 1e6
    all_right = True
    with serving(jpegs, link) as port:
        latency_s = _measured_s(Get(port, options.latency))
        print(
            f"{options.pictures} JPEGs of {size / 1e3:.1f} kB on average; the server waits "
            f"{options.latency:g} ms, a GET alone takes {latency_s * 1e3:.1f} ms\n"
        )
        rows = Rows(_COLUMNS, options.json)
        link_rate = None if link is None else link / size / BATCH
        for row in _ROWS if options.row is None else [_NAMED[name] for name in options.row]:
            record = _record(row, port, options, latency_s, link_rate, right)
            rows.add(record)
            all_right = all_right and record["correct"] and not record["warnings"]
    return 0 if all_right else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("streaming", __doc__)
    parser.add_argument("--row", action="append", choices=_NAMED, help="may be repeated")
    parser.add_argument("--pictures", type=int, help="in an epoch, default 999")
    parser.add_argument("--latency", type=float, default=20.0, help="the server's, in ms")
    parser.add_argument("--link", type=float, help="most MB that the server sends in a second")
    parser.add_argument("--quick", action="store_true", help="320 pictures")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    options.pictures = options.pictures or (320 if options.quick else 999)
    return options


def _measured_s(get: Get) -> float:
    return median(_timed(get, number) for number in range(20))


def _timed(get: Get, number: int) -> float:
    begin = time.perf_counter()
    get(number)
    return time.perf_counter() - begin


def _record(
    row: Row,
    port: int,
    options: argparse.Namespace,
    latency_s: float,
    link_rate: float | None,
    right: list[int],
) -> dict:
    ran = _run(row, port, options.latency, options.pictures)
    seconds = [epoch["seconds"] for epoch in ran["epochs"]]
    fastest_s = min(seconds[-2:])
    rate = len(right) / fastest_s
    record = {
        "name": row.name,
        "download_s": ran["download_s"] if row.downloads == "first" else None,
        "first_s": seconds[0],
        "later_s": min(seconds[1:], default=None),
        "rate": rate,
        "rate_0": None,
        "rate_in_flight": None,
        "share": None,
        "warnings": ran["warnings"],
        "correct": all(epoch["checksums"] == right for epoch in ran["epochs"]),
    }
    if row.loader == "ours" and row.threads and not row.downloads:
        # In turns: a noisy minute must not hit one of them alone.
        at_0 = [_later_s(row, port, 0, options.pictures)]
        at_latency = [fastest_s]
        for _ in range(_TURNS - 1):
            at_latency.append(_later_s(row, port, options.latency, options.pictures))
            at_0.append(_later_s(row, port, 0, options.pictures))
        record["rate"] = rate = len(right) / min(at_latency)
        record["rate_0"] = len(right) / min(at_0)
        if row.in_flight is not None:
            record["rate_in_flight"] = row.in_flight / latency_s / BATCH
        bounds = [record["rate_0"], record["rate_in_flight"], link_rate]
        record["share"] = rate / min(bound for bound in bounds if bound is not None)
    return record


def _later_s(row: Row, port: int, latency_ms: float, count: int) -> float:
    return min(epoch["seconds"] for epoch in _run(row, port, latency_ms, count)["epochs"][1:])


def _run(row: Row, port: int, latency_ms: float, count: int) -> dict:
    """Run a row; what it wrote to stderr counts as warnings, but for torch's advice."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command(row, port, latency_ms, count, Path(folder)),
            cwd=CHECKOUT, capture_output=True, text=True, timeout=_LONGEST_S,
            env=os.environ | _KEEPS_MEMORY,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{row.name} failed:\n{done.stderr}")
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")]
    told = [line for line in lines if _ADVICE not in line]
    for line in told:
        print(f"{row.name}: {line}", file=sys.stderr)
    return {**json.loads(done.stdout), "warnings": len(told)}
