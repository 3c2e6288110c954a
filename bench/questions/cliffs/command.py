"""
Habits that once cost ten times torch's time, or its container's life: torch beside ours.

    python -m bench cliffs
    python -m bench cliffs --row "same bytes" --row zip --repeats 5
    python -m bench cliffs --group                  in control groups in which torch's program runs

The exit code is 1 if a row is above a limit of rule.py without a reason there, or a batch differs.
"""

import statistics
from collections.abc import Iterator

from bench import groups
from bench.driver import in_turns, middle, mistakes, ratio
from bench.loaders import LOADERS
from bench.question import Options, Question, Table, flag, number, show
from bench.questions import kinds
from bench.questions.cliffs import rule, watch
from bench.questions.cliffs.rows import Program, rows
from bench.questions.cliffs.run import Row, find, timed, weighed

_GROUPS = {
    "row": "name",
    "loader": "loader",
    "group, MB": "limit_mb",
    "most it held, MB": "most_mb",
    "outcome": "outcome",
}
_Runs = dict[str, list[dict]]  # by loader
_KINDS = "kinds"
_LOOKS = (watch.DURING, "after")
_LIMITS_MB = {"sizes at random": 1_300, "train and val, persistent": 1_100}
_NO_FIGURES = {
    "times_torch": None,
    **{f"{name}_{what}": None for name in LOADERS for what in ("ms", "mb", "after_mb")},
}


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each program, and for each kind of leaf."""
    for name in [] if options.group else [*rows(), _KINDS]:
        # The beginning of a name is enough, unless it is the whole name of another row.
        wanted = options.row or [name]
        if name in wanted or any(name.startswith(part) for part in wanted if part not in rows()):
            found = _kinds(options) if name == _KINDS else [_record(name, options)]
            for record in found:
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
        outcomes = [] if lacking else show(Table(_GROUPS, _in_groups), options)
        if lacking:
            print(f"nothing was run: {lacking}")
        failed += [each["name"] for each in outcomes if each["outcome"] != "passes"]
    print(f"\nfailed: {', '.join(failed) or 'none'}")
    return not failed


def _record(name: str, options: Options) -> dict:
    """Time a program with each loader in turns, then look at its memory with each."""
    program = find(name, options.full)
    times = in_turns(
        LOADERS, options.repeats, lambda loader: watch.run(lambda _: timed(program, loader))
    )
    weights = _weigh(program, 1)
    record = _figures(program, times, weights)
    if rule.excesses(record):  # a peak depends on how far workers got: it may be chance
        more = _weigh(program, 2)
        weights = {loader: [*weights[loader], *more[loader]] for loader in weights}
        record = _figures(program, times, weights)
    return record


def _weigh(program: Program, repeats: int) -> _Runs:
    return in_turns(
        LOADERS,
        repeats,
        lambda loader: watch.run(lambda look: weighed(program, loader, look)),
    )


def _figures(program: Program, times: _Runs, weights: _Runs) -> dict:
    return {
        "name": program.name,
        "gives_back": program.gives_back,
        "most_time": program.most_time,
        "mistakes": _mistakes(times, weights),
        **_NO_FIGURES,
        **_time_figures(times),
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


def _time_figures(times: dict[str, list[dict]]) -> dict:
    """Return medians over the repeats; the ratio is taken within each repeat."""
    return {
        **{f"{loader}_ms": middle(runs, "ms") for loader, runs in times.items()},
        "times_torch": ratio(times["ours"], times["torch"], "ms"),
    }


def _memory_figures(program: Program, weights: _Runs) -> dict[str, float]:
    """Return what the processes had above what they had before the loaders were made: medians."""
    figures, what = {}, "rss_mb" if program.resident else "mb"
    for loader, weighings in weights.items():
        found = [each for each in weighings if "mistake" not in each]
        if found:
            held = [{at: each[at][what] - each["before"][what] for at in _LOOKS} for each in found]
            figures[f"{loader}_mb"] = statistics.median(max(each.values()) for each in held)
            figures[f"{loader}_after_mb"] = statistics.median(each["after"] for each in held)
    return figures


def _kinds(options: Options) -> Iterator[dict]:
    """Yield a record for each kind; a process measures them all, and no memory."""
    times = in_turns(
        LOADERS, options.repeats, lambda loader: watch.run(lambda _: kinds.timed(loader))
    )
    plain = {"gives_back": False, "most_time": rule.MOST_TIME, **_NO_FIGURES}
    broken = mistakes(times)
    if broken:
        yield {"name": _KINDS, "mistakes": broken, **plain}
        return
    for kind in times["ours"][0]["kinds"]:
        own = {loader: [run["kinds"][kind] for run in runs] for loader, runs in times.items()}
        # torch cannot send each of them.
        wrong = mistakes({"ours": own["ours"]})
        yield {"name": f"{_KINDS}: {kind}", "mistakes": wrong, **plain, **_time_figures(own)}


def _in_groups(_: Options) -> Iterator[dict]:
    """Run two programs in groups in which torch's pass: what a container does to a program."""
    for name, limit_mb in _LIMITS_MB.items():
        right = None
        for loader in LOADERS:
            done = groups.run(Row(name, loader), limit_mb)
            checksum = done.found and done.found["checksum"]
            right = checksum if right is None else right
            differs = done.found and checksum != right
            yield {
                "name": name,
                "loader": loader,
                "limit_mb": limit_mb,
                "most_mb": done.most_mb,
                "outcome": "WRONG: its batches are not torch's" if differs else done.reason,
            }


_NAMES = ", ".join([*rows(), _KINDS])
QUESTION = Question(
    Table(
        {
            "row": "name",
            "torch ms": "torch_ms",
            "ours ms": "ours_ms",
            "times torch": "times_torch",
            "torch MB": "torch_mb",
            "ours MB": "ours_mb",
            "torch MB after": "torch_after_mb",
            "ours MB after": "ours_after_mb",
            "verdict": "verdict",
        },
        _records,
    ),
    {
        "row": {
            "action": "append",
            "metavar": "NAME",
            "help": f"or how some begin; repeatable: {_NAMES}",
        },
        "repeats": number(3, "timed processes of each loader"),
        "full": flag("the large rows in their whole size"),
        "group": flag("only the two control groups"),
    },
    _end,
)
