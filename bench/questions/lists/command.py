"""
Records that workers read: what they cost in memory, at the start, and for each read.

    python -m bench lists
    python -m bench lists --part memory --workers 8 --records 850000
    python -m bench lists --part files --folder /mnt/disk

bench/README.md says what each part measures. Contents are compared everywhere.
"""

from collections.abc import Iterator
from functools import partial

from bench.driver import alone
from bench.question import Options, Question, file, number, numbers, several
from bench.questions.lists import reads, run
from bench.report.strips import strips

_LOADED = [("torch", store) for store in ("list", "numpy", "torch", "SharedList")]
_LOADED += [("ours", "SharedList")]
_STARTED = [(loader, store) for loader in ("torch", "ours") for store in ("list", "SharedList")]
_WORKERS = (2, 4, 8)
_LINES = {
    "list": ("a list", "#404040"),
    "numpy": ("pickles in a numpy array", "#5aa9e6"),
    "torch": ("pickles in a tensor", "#0071bc"),
    "SharedList": ("SharedList", "#c1272d"),
}


def _memory(options: Options) -> Iterator[dict]:
    for context in options.context or ("fork", "spawn"):
        for workers in options.workers or _WORKERS:
            how = {"workers": workers, "context": context, "count": options.records}
            measure = partial(run.memory, **how, epochs=options.epochs)
            without: dict[str, list[float]] = {}
            for loader, store in _LOADED:
                if loader not in without:
                    without[loader] = alone(partial(measure, None, loader))["pss_mb"]
                found = alone(partial(measure, store, loader))
                pairs = zip(found["pss_mb"], without[loader], strict=True)
                above = [taken - empty for taken, empty in pairs]
                yield {
                    "start method": context,
                    "workers": workers,
                    "loader": loader,
                    "records in": store,
                    "data, MB": found["data_mb"],
                    "after an epoch, MB": above[0],
                    "at the end, MB": above[-1],
                    "correct": found["correct"],
                }


def _start(options: Options) -> Iterator[dict]:
    workers = max(options.workers or _WORKERS)
    for loader, store in _STARTED:
        found = alone(partial(run.starts, store, loader, workers, options.paths, options.repeats))
        yield {"workers": workers, "loader": loader, "paths in": store, **found}


def _end(options: Options, found: dict[str, list[dict]]) -> None:
    """Draw the memory as workers are added, with torch's loader: a strip for each start method."""
    if "memory" not in found or not options.picture:
        return
    records = [record for record in found["memory"] if record["loader"] == "torch"]
    methods = sorted({record["start method"] for record in records})
    size, titles = (4.5 * len(methods), 3.6), ("workers", "MB of all processes")
    with strips(options.picture, 1, len(methods), size, *titles, True) as all_:
        for axes, method in zip(all_, methods, strict=True):
            for store, (label, colour) in _LINES.items():
                points = [
                    (record["workers"], record["at the end, MB"])
                    for record in records
                    if (record["start method"], record["records in"]) == (method, store)
                ]
                axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
            axes.set_title(method, loc="left", fontsize=10)
            axes.set_ylim(bottom=0)
        all_[0].legend(frameon=False, fontsize=9)


QUESTION = Question(
    {"memory": _memory, "start": _start, "reads": reads.of_records, "files": reads.of_files},
    {
        "workers": numbers("default 2, 4 and 8"),
        "context": several(("fork", "spawn", "forkserver"), "default fork, spawn"),
        "records": number(100_000, "annotations"),
        "epochs": number(5, "of the part memory"),
        "paths": number(1_200_000, "of the part start"),
        "files": number(10_000, "of the last part"),
        "folder": {"help": "for the files of the last part: on a disk"},
        "repeats": number(5, "pairs of starts of each kind"),
        "picture": file("of the part memory"),
    },
    _end,
)
