"""
Records that workers read: what they cost in memory, at the start, and for each read.

    python -m bench lists
    python -m bench lists --part memory --workers 8 --records 850000
    python -m bench lists --part files --folder /mnt/disk

Four parts. memory: PSS of all processes after epochs over annotations like COCO's, less that of
the same run over a dataset without records. start: seconds to the first batch of spawned workers,
with paths. reads: microseconds for a record in one process. files: a folder of small files beside
one file of their records, read in a shuffled order. Contents are compared everywhere.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.options import parser_of
from bench.questions.lists.files import file_records
from bench.questions.lists.picture import draw
from bench.questions.lists.reads import read_records
from bench.questions.lists.run import Row, command
from bench.report.machine import CHECKOUT
from bench.report.rows import Rows, add_json_option
from bench.run import CONTEXTS

_LONGEST_S = 400
_MEMORY = (
    ("torch", "list"),
    ("torch", "numpy"),
    ("torch", "torch"),
    ("torch", "SharedList"),
    ("ours", "list"),
    ("ours", "SharedList"),
)
_START = (("torch", "list"), ("torch", "SharedList"), ("ours", "list"), ("ours", "SharedList"))

_COLUMNS = {
    "memory": {
        "start method": "context",
        "workers": "workers",
        "loader": "loader",
        "records in": "store",
        "data, MB": "data_mb",
        "after an epoch, MB": "first_mb",
        "at the end, MB": "above_mb",
        "of the data": "times_data",
        "build, s": "build_s",
        "epoch, s": "epoch_s",
        "correct": "correct",
    },
    "start": {
        "workers": "workers",
        "loader": "loader",
        "paths in": "store",
        "first batch, s": "first_batch_s",
        "above no paths, s": "above_s",
        "half of the pairs, s": "spread",
        "workers' CPU above, s": "cpu_above_s",
        "their faults above": "faults_above",
        "sent to each, kB": "sent_kb",
        "pickle, ms": "pickle_ms",
        "unpickle and read, ms": "unpickle_ms",
        "correct": "correct",
    },
    "reads": {
        "record": "record",
        "list, µs": "list",
        "numpy, µs": "numpy",
        "torch, µs": "torch",
        "SharedList, µs": "SharedList",
        "pickled, bytes": "pickled_bytes",
        "SharedList, bytes": "shared_bytes",
        "correct": "correct",
    },
    "files": {
        "cache": "cache",
        "files, MB": "megabytes",
        "single files, µs": "files_us",
        "SharedList, µs": "list_us",
        "times faster": "ratio",
        "correct": "correct",
    },
}


def main(arguments: list[str]) -> int:
    """Print a table for each part; the exit code is 0 if all that was read was right."""
    options = _options(arguments)
    correct = True
    for part in options.part or _COLUMNS:
        print(f"\n{part}\n")
        rows = Rows(_COLUMNS[part], options.json and options.json.with_suffix(f".{part}.json"))
        found = []
        for record in _PARTS[part](options):
            rows.add(record)
            found.append(record)
        correct = correct and all(record["correct"] for record in found)
        if part == "memory" and options.picture:
            draw(found, options.picture)
    return 0 if correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("lists", __doc__)
    parser.add_argument("--part", action="append", choices=_COLUMNS, help="may be repeated")
    parser.add_argument("--workers", action="append", type=int, help="default 2, 4 and 8")
    parser.add_argument("--context", action="append", choices=CONTEXTS, help="default fork, spawn")
    parser.add_argument("--records", type=int, help="annotations, default 100000")
    parser.add_argument("--epochs", type=int, default=5, help="of the part memory")
    parser.add_argument("--paths", type=int, default=1_200_000, help="of the part start")
    parser.add_argument("--folder", help="for the files of the last part: on a disk")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of starts of each kind")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of the part memory")
    parser.add_argument("--quick", action="store_true", help="2 workers, fewer records")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    options.workers = options.workers or ([2] if options.quick else [2, 4, 8])
    options.records = options.records or (20_000 if options.quick else 100_000)
    options.repeats = 1 if options.quick else options.repeats
    return options


def _memory(options: argparse.Namespace) -> Iterator[dict]:
    for context in options.context or ("fork", "spawn"):
        for workers in options.workers:
            without = {}
            sizes = workers, context, options.records, options.epochs
            for loader, store in _MEMORY:
                if loader not in without:
                    without[loader] = _run(Row("memory", None, loader, *sizes))["pss_mb"]
                found = _run(Row("memory", store, loader, *sizes))
                pairs = zip(found["pss_mb"], without[loader], strict=True)
                above = [taken - empty for taken, empty in pairs]
                yield {
                    "context": context, "workers": workers, "loader": loader, "store": store,
                    **found, "first_mb": above[0], "above_mb": above[-1],
                    "times_data": above[-1] / found["data_mb"] if found["data_mb"] else None,
                }  # fmt: skip


def _start(options: argparse.Namespace) -> Iterator[dict]:
    workers = max(options.workers)
    for loader, store in _START:
        row = Row(
            "start", store, loader, workers, "spawn", options.paths, pairs=options.repeats
        )  # fmt: skip
        found = _run(row)
        above = sorted(found["above_s"])
        quarter = len(above) // 4
        yield {
            "workers": workers, "loader": loader, "store": store,
            **found,
            "spread": f"{above[quarter]:.2f} to {above[-1 - quarter]:.2f}",
            **{
                figure: median(found[figure])
                for figure in ("first_batch_s", "above_s", "cpu_above_s", "faults_above")
            },
        }  # fmt: skip


def _run(row: Row) -> dict:
    done = subprocess.run(
        command(row), cwd=CHECKOUT, capture_output=True, text=True, timeout=_LONGEST_S
    )
    if done.returncode:
        sys.exit(f"{row} failed:\n{done.stderr}")
    return json.loads(done.stdout)


_PARTS = {
    "memory": _memory,
    "start": _start,
    "reads": lambda options: read_records(options.quick),
    "files": lambda options: file_records(options.folder, options.quick),
}
