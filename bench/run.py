"""
One contender on one workload, in this process; prints one JSON line.

    python -m bench.run --workload imagenet --contender ours
"""

import argparse
import json
import sys

from bench import contenders, syscalls
from bench.loads.pools import WORKLOADS, Workload, workload
from bench.measure import count_system_calls, measure

CONTEXTS = ("fork", "spawn", "forkserver")


def main(arguments: list[str] | None = None) -> int:
    """Run and print the line; the exit code is 0 if every batch was right."""
    options = _parser().parse_args(arguments)
    record = run(options)
    print(json.dumps(record))
    return 0 if record["correct"] else 1


def run(options: argparse.Namespace) -> dict:
    """Measure what the options name and return the record."""
    contender = contenders.load(options.contender)
    reason = contenders.why_not(contender)
    if reason:
        sys.exit(f"{options.contender}: {reason}")
    chosen = workload(options.workload, options.batches)
    refused = contender.refuses(chosen) if hasattr(contender, "refuses") else None
    found = _refusal(refused) if refused else _measured(contender, chosen, options)
    return {**_header(contender, options), **found}


def _refusal(reason: str) -> dict:
    """A record without figures: nothing was wrong, because nothing was delivered."""
    return {"correct": True, "mistake": None, "refused": reason}


def _measured(contender, chosen: Workload, options: argparse.Namespace) -> dict:
    if hasattr(contender, "measure"):
        return contender.measure(chosen, options.workers, options.epochs)
    record, loader = measure(
        contender, chosen, options.workers, options.epochs, not options.restart, options.context
    )
    try:
        if options.syscalls:
            record["system_calls"] = count_system_calls(loader, chosen)
    finally:
        loader.close()
    return record


def _header(contender, options: argparse.Namespace) -> dict:
    return {
        "workload": options.workload,
        "contender": options.contender,
        "label": contender.label,
        "workers": options.workers,
        "persistent": not options.restart,
        "context": options.context,
        "epochs": options.epochs,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--workload", required=True, choices=WORKLOADS)
    names = [*contenders.names(), contenders.BEFORE]
    parser.add_argument("--contender", required=True, choices=names)
    add_shared_options(parser)
    return parser


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that bench hands on to bench.run."""
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs after the warm-up")
    parser.add_argument("--batches", type=int, help="batches per epoch instead of the workload's")
    parser.add_argument("--context", default="fork", choices=CONTEXTS, help="start method")
    parser.add_argument(
        "--restart", action="store_true", help="start the workers anew in every epoch"
    )
    reason = syscalls.missing()
    parser.add_argument(
        "--syscalls",
        action="store_true",
        help="count system calls with strace, after the timed epochs"
        + (f" ({reason})" if reason else ""),
    )


if __name__ == "__main__":
    sys.exit(main())
