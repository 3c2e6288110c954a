"""
Seconds to the first batch and between epochs, and page faults per epoch, beside torch.

    python -m bench start
    python -m bench start --context spawn --lasting one-epoch --workload imagenet --repeats 5

One process per run; ours and torch take turns. Each start method is run with workers that last
(persistent_workers=True) and with workers that are started anew in every epoch.
"""

import argparse
import sys
from collections.abc import Callable
from statistics import median

from bench import processes
from bench.contenders import BASELINE, SUBJECT
from bench.options import parser_of
from bench.report.rows import Rows, add_json_option
from bench.run import CONTEXTS
from bench.workloads import WORKLOADS

_LASTING = ("all-epochs", "one-epoch")
_NAMES = (SUBJECT, BASELINE)

_COLUMNS = {
    "workload": "workload",
    "start method": "context",
    "workers last": "lasting",
    "loader": "contender",
    "first batch s": "first_batch_s",
    "first, times torch's": "first_batch_ratio",
    "between epochs s": "between_epochs_s",
    "between, times torch's": "between_epochs_ratio",
    "worker faults, first epoch": "first_epoch_faults",
    "a later one": "later_epoch_faults",
    "trainer faults, a later one": "trainer_epoch_faults",
    "correct": "correct",
}


def main(arguments: list[str]) -> int:
    """Print two rows per start method and life of workers; the exit code is 0 if all was right."""
    options = _options(arguments)
    rows = Rows(_COLUMNS, options.json)
    correct = True
    for workload in options.workload or ("cifar",):
        for context in options.context_of or CONTEXTS:
            for lasting in options.lasting or _LASTING:
                options.context, options.restart = context, lasting == "one-epoch"
                for record in _records(workload, options):
                    rows.add({"context": context, "lasting": lasting, **record})
                    correct = correct and record["correct"]
    return 0 if correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("start", __doc__)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default cifar")
    parser.add_argument("--context", dest="context_of", action="append", choices=CONTEXTS)
    parser.add_argument("--lasting", action="append", choices=_LASTING, help="how long workers do")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs after the warm-up")
    parser.add_argument("--batches", type=int, help="batches per epoch instead of the workload's")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each loader")
    add_json_option(parser)
    parser.set_defaults(syscalls=False)
    options = parser.parse_args(arguments)
    if options.epochs < 2:
        parser.error("--epochs: between epochs there is something only if there are two")
    return options


def _records(workload: str, options: argparse.Namespace) -> list[dict]:
    """Let both loaders take turns, the other one first each time."""
    runs: dict[str, list[dict]] = {name: [] for name in _NAMES}
    for turn in range(options.repeats):
        for name in _NAMES if turn % 2 == 0 else reversed(_NAMES):
            found = processes.run(workload, name, options)
            runs[name].append(found)
            if not found["correct"]:
                print(f"WRONG: {name}, {workload}: {found['mistake']}", file=sys.stderr)
    return [_record(workload, name, runs) for name in _NAMES]


def _record(workload: str, name: str, runs: dict[str, list[dict]]) -> dict:
    own, rivals = runs[name], runs[BASELINE]

    def middle(figure: Callable[[dict], float]) -> float | None:
        values = [figure(run) for run in own if "ms_per_batch" in run]
        return median(values) if values else None

    def ratio(key: str) -> float | None:
        pairs = zip(own, rivals, strict=True)
        values = [one[key] / other[key] for one, other in pairs if key in one and key in other]
        return median(values) if values else None

    return {
        "workload": workload,
        "contender": own[0].get("label", name),
        "first_batch_s": middle(lambda run: run["first_batch_s"]),
        "first_batch_ratio": ratio("first_batch_s"),
        "between_epochs_s": middle(lambda run: run["between_epochs_ms"] / 1e3),
        "between_epochs_ratio": ratio("between_epochs_ms"),
        "first_epoch_faults": middle(lambda run: run["warm_up_worker_minor_faults"]),
        "later_epoch_faults": middle(lambda run: run["worker_minor_faults"] * run["batches"]),
        "trainer_epoch_faults": middle(lambda run: run["trainer_minor_faults"] * run["batches"]),
        "correct": all(run["correct"] for run in own),
        "runs": own,
    }
