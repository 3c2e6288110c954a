"""The command: rows in turns, a table, and an exit code."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bench.contenders import BASELINE, BEFORE, SUBJECT
from bench.questions.cliffs import groups, kinds, rule, watch
from bench.questions.cliffs.rows import Row, rows
from bench.questions.cliffs.run import find, timed, weighed
from bench.report.rows import Rows, add_json_option

KINDS = "kinds"

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
_BEFORE_COLUMNS = {
    "before ms": "before_ms", "before MB": "before_mb", "before MB after": "before_after_mb",
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Print a row per program; the exit code is 0 if none fails and every batch was right."""
    options = _options(arguments)
    if options.group:
        return groups.main(options.before)
    failed = _print_table(options)
    if options.is_whole:
        print("\nIn memory control groups:")
        failed += ["a control group"] if groups.main(options.before) else []
    print(f"\nfailed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _print_table(options: argparse.Namespace) -> list[str]:
    """Print the rows, and the reasons of those that may be above a limit. Returns what failed."""
    columns = {**_COLUMNS, **(_BEFORE_COLUMNS if options.before else {})}
    table = Rows(columns, options.json)
    failed, reasons = [], {}
    for record in _records(options):
        record["verdict"] = rule.verdict(record)
        table.add(record)
        failed += [record["name"]] if rule.fails(record) else []
        reasons.update(
            {name: rule.REASONS[name] for name in [record["name"]] if name in rule.REASONS}
        )
        for contender, mistake in record["mistakes"].items():
            print(f"WRONG: {contender}, {record['name']}: {mistake}", file=sys.stderr)
    print(f"\nAbove a limit means: more than {rule.MOST_TIME} times torch's time or", end=" ")
    print(f"{rule.MOST_MEMORY} times its memory.")
    for name, reason in reasons.items():
        print(f"- {name}: {reason}")
    return failed


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench cliffs",
        description="Programs that were much worse than with torch, both in one run.",
    )
    names = [*rows(), KINDS]
    parser.add_argument(
        "--row", action="append", metavar="NAME", help=f"may be repeated: {', '.join(names)}"
    )
    parser.add_argument("--repeats", type=int, help="timed processes of each loader, default 3")
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--full", action="store_true", help="the large rows in their whole size")
    parser.add_argument("--group", action="store_true", help="only the two control groups")
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="run its shmloader too, built there"
    )
    add_json_option(parser)
    options = parser.parse_args(arguments)
    options.repeats = options.repeats or (1 if options.quick else 3)
    chosen = [name for name in names if not options.row or _is_wanted(name, options.row)]
    if not chosen:
        parser.error(f"no row is called {' or '.join(options.row)}")
    options.is_whole = not options.row
    options.row = chosen
    if options.before and not any(options.before.glob("shmloader/**/_core*.so")):
        parser.error(f"--before: no shmloader is built in {options.before}")
    return options


def _is_wanted(name: str, wanted: list[str]) -> bool:
    """Returns True if a row is named, or the beginning of its name is and no row has that name."""
    return name in wanted or any(name.startswith(part) for part in wanted if part not in rows())


def _records(options: argparse.Namespace) -> Iterator[dict]:
    contenders = [BASELINE, SUBJECT, *([BEFORE] if options.before else [])]
    for name in options.row:
        if name == KINDS:
            yield from _kinds(contenders, options)
        else:
            yield _record(find(name, options.full), contenders, options)


def _record(row: Row, contenders: list[str], options: argparse.Namespace) -> dict:
    """Time a row with each loader in turns, then look at its memory once with each."""
    times = _in_turns(contenders, options, lambda contender: lambda _: timed(row, contender))
    weights = {
        contender: watch.run(
            lambda look, contender=contender: weighed(row, contender, look),
            contender,
            options.before,
        )
        for contender in contenders
    }
    record = {
        "name": row.name,
        "gives_back": row.gives_back,
        "mistakes": _mistakes(times, weights),
        **_time_figures(times),
        "times": times,
        "weights": weights,
    }
    for contender, found in weights.items():
        record.update(_memory_figures(_short(contender), found, "rss_mb" if row.resident else "mb"))
    return record


def _in_turns(
    contenders: list[str], options: argparse.Namespace, work: Callable[[str], Callable]
) -> dict[str, list[dict]]:
    """Run each contender in a process of its own, then all again, another one first."""
    found: dict[str, list[dict]] = {name: [] for name in contenders}
    for turn in range(options.repeats):
        for place in range(len(contenders)):
            name = contenders[(turn + place) % len(contenders)]
            found[name].append(watch.run(work(name), name, options.before))
    return found


def _mistakes(times: dict[str, list[dict]], weights: dict[str, dict]) -> dict[str, str]:
    """Collect what failed, and the checksums that differ from torch's."""
    found = {}
    for name, runs in times.items():
        for run in [*runs, weights[name]]:
            found.update({name: run["mistake"]} if "mistake" in run else {})
        right = weights[BASELINE]
        for part in ("checksum", "batches"):
            if name not in found and weights[name][part] != right.get(part):
                found[name] = f"its {part} is not torch's"
    return found


def _time_figures(times: dict[str, list[dict]]) -> dict:
    """Return medians over the repeats; the ratio is taken within each repeat."""
    found: dict[str, float | None] = {}
    for name, runs in times.items():
        values = [run["ms"] for run in runs if "ms" in run]
        found[f"{_short(name)}_ms"] = median(values) if values else None
    pairs = zip(times[SUBJECT], times[BASELINE], strict=True)
    ratios = [
        ours["ms"] / torchs["ms"] for ours, torchs in pairs if "ms" in ours and "ms" in torchs
    ]
    found["times_torch"] = median(ratios) if ratios else None
    return found


def _memory_figures(name: str, found: dict, what: str) -> dict[str, float | None]:
    """Return what a run's processes had above what they had before the loaders were made."""
    if "mistake" in found:
        return {f"{name}_mb": None, f"{name}_after_mb": None}
    during, after = (found[when][what] - found["before"][what] for when in (watch.DURING, "after"))
    return {f"{name}_mb": max(during, after), f"{name}_after_mb": after}


def _kinds(contenders: list[str], options: argparse.Namespace) -> Iterator[dict]:
    """Yield a record for each kind; a process measures them all, and no memory."""
    times = _in_turns(contenders, options, lambda contender: lambda _: kinds.timed(contender))
    broken = {
        name: run["mistake"] for name, runs in times.items() for run in runs if "mistake" in run
    }
    if broken:
        yield {"name": KINDS, "gives_back": False, "mistakes": broken, **_no_figures(contenders)}
        return
    for kind in times[SUBJECT][0]["kinds"]:
        own = {name: [run["kinds"][kind] for run in runs] for name, runs in times.items()}
        mistakes = {
            name: run["mistake"]
            for name, runs in own.items()
            for run in runs
            if "mistake" in run and name != BASELINE  # torch cannot send each of them
        }
        yield {
            "name": f"{KINDS}: {kind}",
            "gives_back": False,
            "mistakes": mistakes,
            **_no_figures(contenders),
            **_time_figures(own),
        }


def _no_figures(contenders: list[str]) -> dict[str, None]:
    names = [_short(name) for name in contenders]
    return {
        "times_torch": None,
        **{f"{name}_{what}": None for name in names for what in ("ms", "mb", "after_mb")},
    }


def _short(contender: str) -> str:
    return "torch" if contender == BASELINE else contender
