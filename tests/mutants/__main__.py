"""
Small mistakes in the sources, made one at a time, and whether the tests find each.

    python -m tests.mutants                       the sample, against the tests of each file
    python -m tests.mutants --only NAME           one of it, as --list names it
    python -m tests.mutants --shard 1/2           every second one, beside --shard 2/2
    python -m tests.mutants --survivors           those that survived, against `make test`
    python -m tests.mutants --check               the tests that found any, without a mistake
    python -m tests.mutants --list
    python -m tests.mutants --table               what the results are, without a run

A run goes on where the last one was broken off: what is in the results is not run again. The exit
code is 0 if none survived.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.mutants import in_c, results
from tests.mutants.judge import Judge
from tests.mutants.site import ROOT, Mutant, mutants
from tests.mutants.tree import Tree

IN_PYTHON, IN_C = 150, 50


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit code."""
    options = _options(arguments)
    if options.table:
        print(results.table(results.read(options.results)))
        return 0
    chosen = [] if options.check else _chosen(options)
    if options.list:
        for mutant in chosen:
            print(mutant.name, *mutant.change(), sep="\n    ")
        return 0
    return _run(chosen, options)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.mutants")
    parser.add_argument("--list", action="store_true", help="print the sample, and run nothing")
    parser.add_argument("--table", action="store_true", help="print the results, and run nothing")
    parser.add_argument("--check", action="store_true", help="run what found any without mistakes")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this one, anew")
    parser.add_argument("--kind", choices=("python", "c"), help="those of one language alone")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="one share of N")
    parser.add_argument("--survivors", action="store_true", help="run them against `make test`")
    parser.add_argument("--limit", type=float, default=180, help="seconds for each (default: 180)")
    parser.add_argument("--seconds", type=float, help="begin no other after this time")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    return parser.parse_args(arguments)


def sample(kind: str | None = None) -> list[Mutant]:
    """Draw the sample, always the same."""
    drawn = []
    if kind != "c":
        from tests.mutants import in_python  # needs mutmut

        drawn += mutants(in_python.sites())[:IN_PYTHON]
    if kind != "python":
        drawn += mutants(in_c.sites())[:IN_C]
    return drawn


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    drawn = sample(options.kind)
    if options.only:
        return [each for each in drawn if each.name in options.only]
    share, shares = map(int, options.shard.split("/"))
    known = results.read(options.results)
    if options.survivors:
        drawn = [each for each in drawn if known.get(each.name, {}).get("outcome") == "survived"]
    elif not options.list:
        drawn = [each for each in drawn if each.name not in known]
    return drawn[share - 1 :: shares]


def _run(chosen: list[Mutant], options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with what it started
    began_s = time.monotonic()
    survived = 0
    tree = Tree()
    try:
        judge = Judge(tree, options.results, options.limit)
        if options.check:
            judge.check()
        for mutant in chosen:
            if options.seconds and time.monotonic() - began_s > options.seconds:
                break
            verdict = judge.against_all(mutant) if options.survivors else judge.verdict(mutant)
            results.append(options.results, verdict)
            survived += verdict["outcome"] == "survived"
            print(results.line(verdict), flush=True)
    finally:
        tree.close()
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
