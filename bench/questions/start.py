"""
Seconds to the first batch and between epochs, and page faults per epoch, beside torch.

    python -m bench start
    python -m bench start --context spawn --lasting one-epoch --workload imagenet --repeats 5

One process per run; ours and torch take turns. Each start method is run with workers that last
(persistent_workers=True) and with workers that are started anew in every epoch.
"""

import argparse
import sys
from collections.abc import Iterator

from bench import processes
from bench.contenders import BASELINE, SUBJECT
from bench.driver import in_turns, middle, mistakes, ratio
from bench.loads.pools import WORKLOADS
from bench.run import CONTEXTS

_LASTING = ("all-epochs", "one-epoch")

COLUMNS = {
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


def records(options: argparse.Namespace) -> Iterator[dict]:
    """Yield two rows per start method and life of workers."""
    if options.epochs < 2:
        sys.exit("--epochs: between epochs there is something only if there are two")
    options.syscalls = False
    for workload in options.workload or ("cifar",):
        for context in options.context_of or CONTEXTS:
            for lasting in options.lasting or _LASTING:
                options.context, options.restart = context, lasting == "one-epoch"
                runs = in_turns(
                    (SUBJECT, BASELINE),
                    options.repeats,
                    lambda name, workload=workload: processes.run(workload, name, options),
                )
                for name, own in runs.items():
                    about = {"workload": workload, "context": context, "lasting": lasting}
                    yield {**about, **_figures(name, own, runs[BASELINE])}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this question."""
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default cifar")
    parser.add_argument("--context", dest="context_of", action="append", choices=CONTEXTS)
    parser.add_argument("--lasting", action="append", choices=_LASTING, help="how long workers do")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs after the warm-up")
    parser.add_argument("--batches", type=int, help="batches per epoch instead of the workload's")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each loader")


def _figures(name: str, own: list[dict], rivals: list[dict]) -> dict:
    batches = own[0].get("batches", 0)
    return {
        "contender": own[0].get("label", name),
        "first_batch_s": middle(own, "first_batch_s"),
        "first_batch_ratio": ratio(own, rivals, "first_batch_s"),
        "between_epochs_s": middle(own, "between_epochs_ms", 1e-3),
        "between_epochs_ratio": ratio(own, rivals, "between_epochs_ms"),
        "first_epoch_faults": middle(own, "warm_up_worker_minor_faults"),
        "later_epoch_faults": middle(own, "worker_minor_faults", batches),
        "trainer_epoch_faults": middle(own, "trainer_minor_faults", batches),
        "mistakes": mistakes({name: own}),
        "correct": all(run["correct"] for run in own),
        "runs": own,
    }
