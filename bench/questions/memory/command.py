"""
How little memory a run needs, beside torch's, and what all of its processes take over time.

    python -m bench memory
    python -m bench memory --part curves --picture bench/results/memory.png

Two parts, over the same loads: a list that workers read, pictures that they keep, samples that
leak, large batches that are ahead of a slow step. need: the smallest control group in which torch's
run passes, and ours in 60 % of it, which has to pass with the same batches. curves: the memory of
all processes over time, with and without each cure. Where no control group can be made, the need is
the most that looks find.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench import groups
from bench.options import parser_of
from bench.questions.memory.limits import least_mb, run_in
from bench.questions.memory.loads import LOADS
from bench.questions.memory.picture import draw
from bench.questions.memory.run import Row
from bench.questions.memory.watch import watch
from bench.report.rows import Rows, add_json_option

_SHARE = 0.6
_NEED = {
    "what takes the memory": "grows",
    "cure": "cure",
    "torch needs, MB": "torch_mb",
    "ours gets, MB": "given_mb",
    "outcome": "outcome",
    "ours needs, MB": "ours_mb",
    "times torch": "ratio",
    "correct": "correct",
}
_CURVES = {
    "load": "grows",
    "loader": "loader",
    "cure": "cure",
    "s": "end_s",
    "most, MB": "most_mb",
    "at the end, MB": "end_mb",
    "correct": "correct",
}


def main(arguments: list[str]) -> int:
    """Print a table for each part; the exit code is 0 if ours passes with torch's batches."""
    options = _options(arguments)
    right = True
    for part in options.part or _PARTS:
        print(f"\n{part}\n")
        columns, rows_of = _PARTS[part]
        rows = Rows(columns, options.json and options.json.with_suffix(f".{part}.json"))
        found = []
        for record in rows_of(options):
            rows.add(record)
            found.append(record)
        right = right and all(record["correct"] for record in found)
        if part == "curves" and options.picture:
            draw(found, options.picture)
    return 0 if right else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("memory", __doc__)
    parser.add_argument("--part", action="append", choices=_PARTS, help="may be repeated")
    parser.add_argument("--load", action="append", choices=LOADS, help="may be repeated")
    parser.add_argument("--workers", type=int, help="instead of the loads' own numbers")
    parser.add_argument("--rounds", type=int, default=3, help="runs in 60 %% of torch's memory")
    parser.add_argument("--quick", action="store_true", help="half of the samples, one round")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of the part curves")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    options.part_of_samples = 0.5 if options.quick else 1.0
    options.rounds = 1 if options.quick else options.rounds
    return options


def _need(options: argparse.Namespace) -> Iterator[dict]:
    has_groups = _has_groups()
    for name in options.load or LOADS:
        load = LOADS[name]
        torchs = Row(name, "torch", False, options.part_of_samples, options.workers)
        ours = Row(name, "ours", bool(load.cure), options.part_of_samples, options.workers)
        torch_mb, digest = least_mb(torchs, has_groups)
        ours_mb, found = least_mb(ours, has_groups)
        given_mb = _SHARE * torch_mb
        rounds = options.rounds if has_groups else 0
        outcomes = [run_in(ours, given_mb) for _ in range(rounds)]
        yield {
            "load": name,
            "grows": load.grows,
            "cure": load.cure or "none",
            "torch_mb": torch_mb,
            "given_mb": given_mb,
            "outcome": ", ".join(dict.fromkeys(each.reason for each in outcomes)),
            "ours_mb": ours_mb,
            "ratio": ours_mb / torch_mb,
            "correct": {digest} == {found, *(each.digest for each in outcomes)}
            and ours_mb <= given_mb,
        }


def _has_groups() -> bool:
    try:
        groups.check()
    except groups.Unavailable as reason:
        print(f"{reason}: needs are the most that looks found.\n")
        return False
    return True


def _curves(options: argparse.Namespace) -> Iterator[dict]:
    for name in options.load or [name for name, load in LOADS.items() if load.cure]:
        load, digests = LOADS[name], set()
        ways = [("torch", False), ("torch", True), ("ours", False), ("ours", True)]
        for loader, cure in ways:
            if cure and loader == "torch" and not load.suits_torch:
                continue
            found = watch(Row(name, loader, cure, options.part_of_samples, options.workers))
            digests.add(found.digest)
            looks = found.looks
            yield {
                "load": name,
                "grows": load.grows,
                "loader": loader,
                "cure": load.cure if cure else "",
                "seconds": [round(look.seconds, 2) for look in looks],
                "mb": [round(look.bytes / 1e6, 1) for look in looks],
                "end_s": looks[-1].seconds,
                "most_mb": max(look.bytes for look in looks) / 1e6,
                "end_mb": looks[-1].bytes / 1e6,
                "correct": len(digests) == 1,
            }


_PARTS = {"need": (_NEED, _need), "curves": (_CURVES, _curves)}
