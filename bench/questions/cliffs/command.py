"""
Habits that once cost ten times torch's time, or its container's life: torch beside ours.

    python -m bench cliffs
    python -m bench cliffs --row "same bytes" --row zip --repeats 5
    python -m bench cliffs --group                  in control groups in which torch's program runs

The exit code is 1 if a row is above a limit of rule.py without a reason there, or a batch differs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from bench import groups
from bench.driver import in_turns, middle, mistakes, ratio
from bench.loaders import LOADERS
from bench.loads.kinds import KINDS
from bench.question import Options, Question, Table, flag, number, show
from bench.questions import kinds
from bench.questions.cliffs import rule, watch
from bench.questions.cliffs.rows import Program, rows
from bench.questions.cliffs.run import run, timed, weighed

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
_KINDS = "kinds"
_LOOKS = (watch.DURING, "after")
_LIMITS_MB = {"sizes at random": 1_300, "train and val, persistent": 1_100}
_NOTHING = {
    "gives_back": False,
    "most_time": rule.MOST_TIME,
    **{f"{name}_{what}": None for name in LOADERS for what in ("ms", "mb", "after_mb")},
}
_Runs = dict[str, list[dict]]  # by loader


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each program, and for each kind of batch."""
    programs = rows()
    names = [] if options.group else [*programs, *(f"{_KINDS}: {kind}" for kind in KINDS)]
    for name in names:
        # The beginning of a name is enough, unless it is the whole name of another row.
        wanted = options.row or [name]
        if name in wanted or any(name.startswith(part) for part in wanted if part not in programs):
            record = _NOTHING | (
                _record(name, programs[name], options)
                if name in programs
                else _kind(name, options.repeats)
            )
            verdict, fails = rule.verdict(record), rule.fails(record)
            yield {**record, "verdict": verdict, "correct": not fails}


def _end(options: Options, found: dict[str, list[dict]]) -> bool:
    """Print reasons and what failed, then the control groups. Returns True if all of these pass."""
    names = [record["name"] for record in found["cliffs"]]
    if names:
        print(f"\nAbove a limit means: more than {rule.MOST_TIME} times torch's time", end=" ")
        print(f"({rule.OF_OBJECTS} for objects and views) or {rule.MOST_MEMORY} times its memory.")
    for name in names:
        if name in rule.REASONS:
            print(f"- {name}: {rule.REASONS[name]}")
    failed = [record["name"] for record in found["cliffs"] if not record["correct"]]
    if options.group or not options.row:
        print("\nIn memory control groups:\n")
        lacking = groups.why_not()
        outcomes = [] if lacking else show(_in_groups, options)
        if lacking:
            print(f"nothing was run: {lacking}")
        failed += [each["row"] for each in outcomes if each["outcome"] != "passes"]
    print(f"\nfailed: {', '.join(failed) or 'none'}")
    return not failed


def _record(name: str, program: Program, options: Options) -> dict:
    """Time a program with each loader in turns, then look at its memory with each."""
    load = (options.full and program.large) or program.load
    times = _forked(options.repeats, lambda loader, _: timed(program, load, loader))
    weigh = partial(weighed, program, load)
    weights = _forked(1, weigh)
    record = _figures(name, program, times, weights)
    if rule.excesses(record):  # a peak depends on how far workers got: it may be chance
        more = _forked(2, weigh)
        weights = {loader: [*weights[loader], *more[loader]] for loader in weights}
        record = _figures(name, program, times, weights)
    return record


def _forked(repeats: int, measure: Callable[[str, watch.Look], dict]) -> _Runs:
    """Measure each loader in turns, in processes that are forked."""
    return in_turns(LOADERS, repeats, lambda loader: watch.run(partial(measure, loader)))


def _figures(name: str, program: Program, times: _Runs, weights: _Runs) -> dict:
    """Return medians; the ratio of times is taken within each repeat."""
    return {
        "name": name,
        "gives_back": program.gives_back,
        "most_time": program.most_time,
        "mistakes": _mistakes(times, weights),
        "torch_ms": middle(times["torch"], "ms"),
        "ours_ms": middle(times["ours"], "ms"),
        "times_torch": ratio(times["ours"], times["torch"], "ms"),
        **_memory_figures(program, weights),
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


def _memory_figures(program: Program, weights: _Runs) -> dict[str, float]:
    """Return what the processes had above what they had before the loaders were made: medians."""
    figures, what = {}, "rss_mb" if program.resident else "mb"
    for loader, weighings in weights.items():
        found = [each for each in weighings if "mistake" not in each]
        if found:
            held = [{at: each[at][what] - each["before"][what] for at in _LOOKS} for each in found]
            figures[f"{loader}_mb"] = median(max(each.values()) for each in held)
            figures[f"{loader}_after_mb"] = median(each["after"] for each in held)
    return figures


def _kind(name: str, repeats: int) -> dict:
    """Time a kind of batch, as `bench kinds` does."""
    found = kinds.record(name.partition(": ")[2], repeats)
    ours, theirs = found["ours ms"], found["torch ms"]
    return {
        "name": name,
        "mistakes": found["mistakes"],
        "torch_ms": theirs,
        "ours_ms": ours,
        "times_torch": theirs and ours / theirs,
    }


def _in_groups(_: Options) -> Iterator[dict]:
    """Run two programs in groups in which torch's pass: what a container does to a program."""
    for name, limit_mb in _LIMITS_MB.items():
        right = None
        for loader in LOADERS:
            done = groups.run(partial(run, name, loader), limit_mb)
            checksum = done.found and done.found["checksum"]
            right = checksum if right is None else right
            differs = done.found and checksum != right
            yield {
                "row": name,
                "loader": loader,
                "group, MB": limit_mb,
                "most it held, MB": done.most_mb,
                "outcome": "WRONG: its batches are not torch's" if differs else done.reason,
            }


QUESTION = Question(
    Table(_COLUMNS, _records),
    {
        "row": {
            "action": "append",
            "metavar": "NAME",
            "help": f"or how some begin; repeatable: {', '.join([*rows(), _KINDS])}",
        },
        "repeats": number(3, "timed processes of each loader"),
        "full": flag("the large rows in their whole size"),
        "group": flag("only the two control groups"),
    },
    _end,
)
