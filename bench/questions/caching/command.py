"""
JPEGs that are decoded once: the speed of later epochs, memory by workers, and if not all fits.

    python -m bench caching
    python -m bench caching --quick

Three tables: epochs beside torch and beside plain copies from one tensor, which are the bound; the
memory of all processes with 2, 4 and 8 workers; and what is found if a part of the data fits. Every
row runs in a process of its own; a part of each picture is compared in every epoch, and all of it
in one more.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median

from bench.options import parser_of
from bench.questions.caching.pictures import PICTURE_BYTES
from bench.questions.caching.run import Row
from bench.report.machine import CHECKOUT
from bench.report.rows import Rows

_LONGEST_S = 400
_SPEED = {
    "loader": "loader",
    "dataset": "dataset",
    "first epoch, s": "first_s",
    "later ones, s": "later_s",
    "later: pictures/s": "rate",
    "of the bound": "share",
    "correct": "correct",
}
_MEMORY = {
    "workers": "workers",
    "dataset": "dataset",
    "all processes, MB": "all_mb",
    "beside decoding each time, MB": "more_mb",
    "of the pictures": "share",
    "correct": "correct",
}
_FITS = {
    "has room for": "fits",
    "keeps": "kept",
    "hits in later epochs": "hits",
    "later ones, s": "later_s",
    "correct": "correct",
}
_NAMES = {
    "decoded": "decoded each time",
    "cached": "`cached()`",
    "kept": "a dict in each worker",
    "copied": "copied from one tensor: the bound",
}


def main(arguments: list[str]) -> int:
    """Print the tables; the exit code is 0 if all batches were right."""
    options = _options(arguments)
    megabytes = options.pictures * PICTURE_BYTES / 1e6
    print(
        f"{options.pictures} JPEGs of 500 × 375, decoded to 224 × 224 × 3 bytes: {megabytes:.0f} MB"
    )
    tables = {"speed": _speed, "memory": _memory, "fits": _fits}
    are_right = [tables[name](options) for name in options.table or tables]
    return 0 if all(are_right) else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("caching", __doc__)
    parser.add_argument("--table", action="append", choices=("speed", "memory", "fits"))
    parser.add_argument("--pictures", type=int, help="default 2048")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row of the first table")
    parser.add_argument("--quick", action="store_true", help="512 pictures, one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write a JSON line per run")
    options = parser.parse_args(arguments)
    options.pictures = options.pictures or (512 if options.quick else 2048)
    options.rounds = 1 if options.quick else options.rounds
    if options.json:
        options.json.write_text("")
    return options


def _run(options: argparse.Namespace, **row: object) -> dict:
    wanted = Row(**{"pictures": options.pictures, "workers": 2, "epochs": 4, **row})
    command = [sys.executable, "-m", "bench.questions.caching", json.dumps(asdict(wanted))]
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=_LONGEST_S, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{command} failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    if options.json:
        with options.json.open("a") as lines:
            lines.write(json.dumps({**asdict(wanted), **found}) + "\n")
    return found


def _speed(options: argparse.Namespace) -> bool:
    """The loaders take turns, so that a slower minute of the machine is everybody's."""
    cases = [
        {"loader": loader, "dataset": dataset}
        for loader in ("torch", "ours")
        for dataset in ("decoded", "cached", "copied")
    ]
    cases.append({"loader": "ours", "dataset": "cached", "persistent": False})
    runs = [[_run(options, **case) for case in cases] for _ in range(options.rounds)]
    print()
    rows = Rows(_SPEED)
    later = [
        median(second for run in turn for second in run["seconds"][1:])
        for turn in zip(*runs, strict=True)
    ]
    bound = {
        case["loader"]: s
        for case, s in zip(cases, later, strict=True)
        if case["dataset"] == "copied"
    }
    is_right = True
    for case, turn, later_s in zip(cases, zip(*runs, strict=True), later, strict=True):
        correct = all(run["correct"] for run in turn)
        is_right = is_right and correct
        name = _NAMES[case["dataset"]]
        rows.add(
            {
                "loader": "torch" if case["loader"] == "torch" else "shmloader",
                "dataset": name if case.get("persistent", True) else f"{name}, workers anew",
                "first_s": median(run["seconds"][0] for run in turn),
                "later_s": later_s,
                "rate": options.pictures / later_s,
                "share": bound[case["loader"]] / later_s,
                "correct": correct,
            }
        )
    return is_right


def _memory(options: argparse.Namespace) -> bool:
    print()
    rows = Rows(_MEMORY)
    is_right = True
    for workers in (2, 4, 8):
        plain = None
        for dataset in ("decoded", "kept", "cached"):
            run = _run(options, loader="ours", dataset=dataset, workers=workers)
            total = run["memory"]["shared_mb"] + run["memory"]["private_mb"]
            plain = total if plain is None else plain
            is_right = is_right and run["correct"]
            rows.add(
                {
                    "workers": workers,
                    "dataset": _NAMES[dataset],
                    "all_mb": total,
                    "more_mb": total - plain,
                    "share": (total - plain) / (options.pictures * PICTURE_BYTES / 1e6),
                    "correct": run["correct"],
                }
            )
    return is_right


def _fits(options: argparse.Namespace) -> bool:
    print()
    rows = Rows(_FITS)
    is_right = True
    for fits in (0.25, 0.5, 0.75, 1.0, 1.1):
        run = _run(options, loader="ours", dataset="cached", fits=fits)
        is_right = is_right and run["correct"]
        later = run["hits"][-1] - run["hits"][0]
        rows.add(
            {
                "fits": fits,
                "kept": run["entries"] / options.pictures,
                "hits": later / options.pictures / (len(run["hits"]) - 1),
                "later_s": median(run["seconds"][1:]),
                "correct": run["correct"],
            }
        )
    return is_right
