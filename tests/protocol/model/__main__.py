"""
Check the models: `python -m tests.protocol.model`.

It exits with 0 if every run holds and every mutation is found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from . import cases, spin

HEADER = f"{'model':8} {'run':30} {'states':>9} {'transitions':>11} {'depth':>5} {'MB':>5} {'s':>5}"


def main(arguments: list[str] | None = None) -> int:
    """
    Run the command line.

    Returns:
        The exit status.
    """
    options = parse(arguments)
    if not spin.is_here():
        print(spin.MISSING, file=sys.stderr)
        return 1
    if options.trace:
        print(spin.trace(mutation_named(options.trace).run))
        return 0
    started = time.monotonic()
    complaints = [*check_runs(options), *check_mutations(options)]
    print(
        f"\n{time.monotonic() - started:.0f} s, {len(complaints)} complaints", *complaints, sep="\n"
    )
    return 1 if complaints else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.model", description=__doc__)
    parser.add_argument(
        "--model", choices=cases.MODELS, action="append", help="this model alone; may be repeated"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="searches at a time"
    )
    parser.add_argument(
        "--trace",
        choices=[mutation.flag for mutation in cases.MUTATIONS],
        metavar="MUTATION",
        help="print the shortest way to the fault of a mutation instead",
    )
    options = parser.parse_args(arguments)
    options.model = options.model or cases.MODELS
    return options


def mutation_named(flag: str) -> cases.Mutation:
    """Find a mutation."""
    return next(mutation for mutation in cases.MUTATIONS if mutation.flag == flag)


def check_runs(options: argparse.Namespace) -> Iterator[str]:
    """
    Search the models, print a table, and complain of faults and of statements that no run executes.
    """
    runs = [run for run in cases.RUNS if run.model in options.model]
    idle: dict[str, frozenset[str]] = {}
    states = transitions = 0
    print(HEADER)
    for run, outcome in search(runs, options.jobs, spin.LONG):
        print(row(run, outcome), flush=True)
        states += outcome.states
        transitions += outcome.transitions
        if outcome.fault:
            yield f"{run.model}, {run.name}: {outcome.fault}"
        if not run.ends:
            idle[run.model] = idle.get(run.model, outcome.idle) & outcome.idle
    print(f"{len(runs):8} {'runs':30} {states:9} {transitions:11}")
    for model, statements in idle.items():
        yield from (f"{model}, never executed: {what}" for what in sorted(statements))


def search(
    runs: list[cases.Run], jobs: int, optimise: str
) -> Iterator[tuple[cases.Run, spin.Outcome]]:
    """Search several models at a time; what was found comes in the order of the runs."""
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = pool.map(spin.check, runs, [optimise] * len(runs))
        yield from zip(runs, outcomes, strict=True)


def row(run: cases.Run, outcome: spin.Outcome) -> str:
    """Write a run as a line of the table."""
    size = f"{outcome.states:9} {outcome.transitions:11} {outcome.depth:5}"
    price = f"{outcome.memory_mb:5.0f} {outcome.seconds:5.1f}"
    return f"{run.model:8} {run.name:30} {size} {price}  {outcome.fault or 'holds'}"


def check_mutations(options: argparse.Namespace) -> Iterator[str]:
    """
    Search the models with each mistake, print how it shows, and complain of those that do not.
    """
    mutations = [mutation for mutation in cases.MUTATIONS if mutation.model in options.model]
    print(f"\n{'model':8} {'mutation':23} {'found as':19} what it does")
    outcomes = search([mutation.run for mutation in mutations], options.jobs, spin.SHORT)
    for mutation, (_, outcome) in zip(mutations, outcomes, strict=True):
        found = outcome.fault.startswith(mutation.fault)
        shown = mutation.fault if found else outcome.fault or "NOT FOUND"
        print(f"{mutation.model:8} {mutation.flag:23} {shown:19} {mutation.says}", flush=True)
        if not found:
            yield f"{mutation.model}, {mutation.flag}: not found as {mutation.fault}"


if __name__ == "__main__":
    sys.exit(main())
