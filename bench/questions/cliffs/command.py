"""
Habits that once cost ten times torch's time, or its container's life: torch beside ours.

    python -m bench cliffs
    python -m bench cliffs --row "same bytes" --row zip --repeats 5

The exit code is 1 if a row is above a limit of rule.py without a reason there, or a batch differs.
"""

from collections.abc import Iterator
from functools import partial

from bench.driver import in_turns, middle, mistakes, ratio
from bench.loaders import LOADERS
from bench.question import Options, Question, Table, number
from bench.questions.cliffs import rule
from bench.questions.cliffs.rows import Program, rows
from bench.questions.cliffs.run import forked, timed, weighed

_COLUMNS = {
    "row": "name",
    "torch ms": "torch_ms",
    "ours ms": "ours_ms",
    "times torch": "times_torch",
    "torch MB": "torch_mb",
    "ours MB": "ours_mb",
    "torch MB after": "torch_after_mb",
    "ours MB after": "ours_after_mb",
    "verdict": "verdict",
}
_Runs = dict[str, list[dict]]  # by loader


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each program."""
    for name, program in rows().items():
        if any(name.startswith(wanted) for wanted in options.row or [name]):
            record = _record(name, program, options.repeats)
            yield {**record, "verdict": rule.verdict(record), "correct": not rule.fails(record)}


def _end(_: Options, found: dict[str, list[dict]]) -> None:
    """Print reasons and what failed."""
    names = [record["name"] for record in found["cliffs"]]
    print(f"\nAbove a limit means: more than {rule.MOST_TIME} times torch's time", end=" ")
    print(f"({rule.OF_OBJECTS} for objects and views) or {rule.MOST_MEMORY} times its memory.")
    for name in names:
        if name in rule.REASONS:
            print(f"- {name}: {rule.REASONS[name]}")
    failed = [record["name"] for record in found["cliffs"] if not record["correct"]]
    print(f"\nfailed: {', '.join(failed) or 'none'}")


def _record(name: str, program: Program, repeats: int) -> dict:
    """Time a program with each loader in turns, then look at its memory with each."""

    def runs(measure, repeats: int) -> _Runs:
        return in_turns(LOADERS, repeats, lambda each: forked(partial(measure, program, each)))

    times, weights = runs(timed, repeats), runs(weighed, 1)
    record = _figures(name, program, times, weights)
    if rule.excesses(record):  # a peak depends on how far workers got: it may be chance
        more = runs(weighed, 2)
        weights = {loader: [*weights[loader], *more[loader]] for loader in weights}
        record = _figures(name, program, times, weights)
    return record


def _figures(name: str, program: Program, times: _Runs, weights: _Runs) -> dict:
    """Return medians; the ratio of times is taken within each repeat."""
    return {
        "name": name,
        "gives_back": program.gives_back,
        "most_time": program.most_time,
        "mistakes": _mistakes(times, weights),
        **{f"{loader}_ms": middle(runs, "ms") for loader, runs in times.items()},
        "times_torch": ratio(times["ours"], times["torch"], "ms"),
        **{f"{loader}_mb": middle(runs, "mb") for loader, runs in weights.items()},
        **{f"{loader}_after_mb": middle(runs, "after_mb") for loader, runs in weights.items()},
        "times": times,
        "weights": weights,
    }


def _mistakes(times: _Runs, weights: _Runs) -> dict[str, str]:
    """Collect checksums that differ from torch's, and what failed."""
    found = {}
    for loader, weighings in weights.items():
        for part in ("checksum", "batches"):
            if any(each.get(part) != weights["torch"][0].get(part) for each in weighings):
                found[loader] = f"its {part} is not torch's"
    return found | mistakes({loader: [*times[loader], *weights[loader]] for loader in weights})


QUESTION = Question(
    Table(_COLUMNS, _records),
    {
        "row": {
            "action": "append",
            "metavar": "NAME",
            "help": f"or how some begin; repeatable: {', '.join(rows())}",
        },
        "repeats": number(3, "timed processes of each loader"),
    },
    _end,
)
