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
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.driver import alone
from bench.questions.lists.files import file_records
from bench.questions.lists.reads import read_records
from bench.questions.lists.run import Row
from bench.report.strips import strips
from bench.run import CONTEXTS

_MEMORY = (
    ("torch", "list"),
    ("torch", "numpy"),
    ("torch", "torch"),
    ("torch", "SharedList"),
    ("ours", "list"),
    ("ours", "SharedList"),
)
_START = (("torch", "list"), ("torch", "SharedList"), ("ours", "list"), ("ours", "SharedList"))

COLUMNS = {
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


_LINES = {
    "list": ("a list", "#404040"),
    "numpy": ("pickles in a numpy array", "#5aa9e6"),
    "torch": ("pickles in a tensor", "#0071bc"),
    "SharedList": ("SharedList", "#c1272d"),
}


def end(options: argparse.Namespace, found: dict[str, list[dict]]) -> None:
    """Draw the memory as workers are added, with torch's loader: a strip for each start method."""
    if "memory" not in found or not options.picture:
        return
    methods = sorted({record["context"] for record in found["memory"]})
    size = (4.5 * len(methods), 3.6)
    with strips(
        options.picture, 1, len(methods), size, "workers", "MB of all processes", True
    ) as all_:
        for axes, method in zip(all_, methods, strict=True):
            for store, (label, colour) in _LINES.items():
                wanted = (method, "torch", store)
                chosen = [
                    record
                    for record in found["memory"]
                    if (record["context"], record["loader"], record["store"]) == wanted
                ]
                workers, above_mb = (
                    [each[of] for each in chosen] for of in ("workers", "above_mb")
                )
                axes.plot(workers, above_mb, marker="o", color=colour, label=label)
            axes.set_title(method, loc="left", fontsize=10)
            axes.set_ylim(bottom=0)
        all_[0].legend(frameon=False, fontsize=9)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--workers", action="append", type=int, help="default 2, 4 and 8")
    parser.add_argument("--context", action="append", choices=CONTEXTS, help="default fork, spawn")
    parser.add_argument("--records", type=int, help="annotations, default 100000")
    parser.add_argument("--epochs", type=int, default=5, help="of the part memory")
    parser.add_argument("--paths", type=int, default=1_200_000, help="of the part start")
    parser.add_argument("--folder", help="for the files of the last part: on a disk")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of starts of each kind")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of the part memory")
    parser.add_argument("--quick", action="store_true", help="2 workers, fewer records")


def _memory(options: argparse.Namespace) -> Iterator[dict]:
    records = options.records or (20_000 if options.quick else 100_000)
    for context in options.context or ("fork", "spawn"):
        for workers in _workers(options):
            without: dict[str, list[float]] = {}
            sizes = workers, context, records, options.epochs
            for loader, store in _MEMORY:
                if loader not in without:
                    without[loader] = alone(Row("memory", None, loader, *sizes))[0]["pss_mb"]
                found, _ = alone(Row("memory", store, loader, *sizes))
                pairs = zip(found["pss_mb"], without[loader], strict=True)
                above = [taken - empty for taken, empty in pairs]
                yield {
                    "context": context, "workers": workers, "loader": loader, "store": store,
                    **found, "first_mb": above[0], "above_mb": above[-1],
                    "times_data": above[-1] / found["data_mb"] if found["data_mb"] else None,
                }  # fmt: skip


def _start(options: argparse.Namespace) -> Iterator[dict]:
    workers, repeats = max(_workers(options)), 1 if options.quick else options.repeats
    for loader, store in _START:
        row = Row("start", store, loader, workers, "spawn", options.paths, pairs=repeats)
        found, _ = alone(row)
        above = sorted(found["above_s"])
        quarter = len(above) // 4
        yield {
            "workers": workers, "loader": loader, "store": store,
            **found,
            "spread": f"{above[quarter]:.2f} to {above[-1 - quarter]:.2f}",
            **{
                figure: median(found[figure])
                for figure in ("first_batch_s", "above_s")
            },
        }  # fmt: skip


def _workers(options: argparse.Namespace) -> list[int]:
    return options.workers or ([2] if options.quick else [2, 4, 8])


PARTS = {
    "memory": (COLUMNS["memory"], _memory),
    "start": (COLUMNS["start"], _start),
    "reads": (COLUMNS["reads"], lambda options: read_records(options.quick)),
    "files": (COLUMNS["files"], lambda options: file_records(options.folder, options.quick)),
}
