"""
1,000 batches of 9.6 MB ahead of a training that is elsewhere for a while: a folder, torch, ours.

    python -m bench deep
    python -m bench deep --most 200 --away 3

The training is elsewhere for some seconds, takes as many batches as the buffer holds, and does both
again. *script* has a second program fill a folder in memory and look into a text file for the place
of the training. Every batch is compared. It takes 11 GB of memory for 1,000 batches.
"""

import argparse
import json
import subprocess
import sys

from bench.options import parser_of
from bench.questions.deep.pictures import Crops, batch_of, look_at
from bench.questions.deep.ways import ROUNDS
from bench.report.machine import CHECKOUT
from bench.report.rows import Rows, add_json_option

_NAMES = {"script": "folder and script", "torch": "torch", "ours": "ours"}
_COLUMNS = {
    "way": "name",
    "made while away": "made",
    "batches/s then": "rate",
    "steps that wait": "waits",
    "longest wait, s": "longest_s",
    "shared GB": "shared_gb",
    "left GB": "left_gb",
    "descriptors": "descriptors",
    "correct": "correct",
}
_LONGEST_S = 400


def main(arguments: list[str]) -> int:
    """Print a row for each way; the exit code is 0 if all batches were right."""
    options = _options(arguments)
    dataset = Crops(ROUNDS * options.most)
    right = [list(look_at(batch_of(dataset, n))) for n in range(ROUNDS * options.most)]
    rows, all_right = Rows(_COLUMNS, options.json), True
    for way in options.way or _NAMES:
        record = _record(way, options, right)
        rows.add(record)
        all_right &= record["correct"]
    return 0 if all_right else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("deep", __doc__)
    parser.add_argument("--most", type=int, default=1000, help="batches ahead, an even number")
    parser.add_argument("--away", type=float, default=12.0, help="seconds that training is away")
    parser.add_argument(
        "--poll", type=float, default=1.0, help="seconds between the script's looks"
    )
    parser.add_argument("--way", action="append", choices=_NAMES, help="may be repeated")
    add_json_option(parser)
    return parser.parse_args(arguments)


def _record(way: str, options: argparse.Namespace, right: list[list[int]]) -> dict:
    spec = {"way": way, "most": options.most, "away_s": options.away, "poll_s": options.poll}
    done = subprocess.run(
        [sys.executable, "-m", "bench.questions.deep", json.dumps(spec)],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=_LONGEST_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{way} failed:\n{done.stderr}")
    ran = json.loads(done.stdout)
    last = ran["rounds"][-1]
    return {
        "name": _NAMES[way],
        "made": last["made"],
        "rate": last["rate"],
        "waits": sum(each["waits"] for each in ran["rounds"]),
        "longest_s": max(each["longest_s"] for each in ran["rounds"]),
        "shared_gb": ran["shared_bytes"] / 1e9,
        "left_gb": ran["left_bytes"] / 1e9,
        "descriptors": ran["descriptors"],
        "rounds": ran["rounds"],
        "correct": ran["looks"] == right,
    }
