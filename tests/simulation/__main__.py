"""
Runs of a trainer, its workers and their nursery, of which one process goes on at a time.

    python -m tests.simulation                            a minute of it, on all cores
    python -m tests.simulation --seconds 7200
    python -m tests.simulation --seed 1234 --runs 1       the run of that seed again
    python -m tests.simulation --case 'Case(...)' --trace the run of a case, step by step
    python -m tests.simulation --planted                  how soon each planted mistake is found

A run that fails is printed with the command that replays it. The exit code is 0 if none failed.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from typing import Any

from tests.simulation import planting
from tests.simulation.case import Case, draw
from tests.simulation.stage import Stage, build, several
from tests.simulation.telling import told

_TELL_EVERY_S = 60.0
_TRACE_MOST = 400


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit code."""
    options = _options(arguments)
    build()
    if options.planted:
        return planting.tell(options.planted_names, options.seed, options.starts, options.jobs)
    if options.case:
        return _play_one(eval(options.case, {"Case": Case}), options)
    return Run(options).go()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--runs", type=int, help="how many runs at most")
    parser.add_argument("--seed", type=int, help="of the first run; each next one has the next")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--failures", type=int, default=1, help="how many to find (default: 1)")
    parser.add_argument("--case", help="a case to play, as it was printed")
    parser.add_argument("--trace", action="store_true", help="print what happened last")
    parser.add_argument("--planted", action="store_true", help="find the planted mistakes")
    parser.add_argument("--starts", type=int, default=10, help="of that (default: 10)")
    parser.add_argument("planted_names", nargs="*", help="those alone, by name")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    return options


def _play_one(case: Case, options: argparse.Namespace) -> int:
    """Play a case, and print what came of it."""
    with several(1) as (stage,):
        outcome = stage.play(case, options.trace)
        if options.trace:
            print(told(outcome["trace"], _TRACE_MOST))
        print(_summary(outcome), flush=True)
    return int(bool(outcome["failure"]))


def _command(case: Case) -> str:
    return f"python -m tests.simulation --case '{case}'"


def _summary(outcome: dict[str, Any]) -> str:
    how = outcome["failure"] or "well"
    return (
        f"{how}\n{outcome['events']} events, {outcome['switches']} changes of process, "
        f"{outcome['died']} deaths, trace {outcome['hash']:016x}"
    )


class Run:
    """Plays the cases of one seed after the other, a few at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began_s = self._told_s = time.monotonic()
        self._next_seed = options.seed
        self._over = self._deaths = 0
        self._traces: set[int] = set()
        self._failed: list[int] = []

    def go(self) -> int:
        """Returns the exit code."""
        print(f"runs from seed {self._options.seed} on", flush=True)
        with several(self._options.jobs) as stages:
            busy = {stage: case for stage in stages if (case := self._begin(stage))}
            while busy:
                for stage in select.select([*busy], [], [], 1.0)[0]:
                    self._note(busy.pop(stage), stage.outcome())
                    if case := self._begin(stage):
                        busy[stage] = case
                if time.monotonic() - self._told_s > _TELL_EVERY_S:
                    self._tell()
        self._tell()
        return int(bool(self._failed))

    def _begin(self, stage: Stage) -> Case | None:
        options = self._options
        is_time = time.monotonic() - self._began_s < options.seconds
        is_enough = options.runs is not None and self._next_seed - options.seed >= options.runs
        if not is_time or is_enough or len(self._failed) >= options.failures:
            return None
        case = draw(self._next_seed)
        self._next_seed += 1
        stage.begin(case)
        return case

    def _note(self, case: Case, outcome: dict[str, Any]) -> None:
        self._over += 1
        self._deaths += outcome["died"]
        self._traces.add(outcome["hash"])
        if outcome["failure"]:
            self._failed.append(case.seed)
            print(f"\nseed {case.seed}: {_summary(outcome)}")
            print(f"replay: {_command(case)} --trace\n", flush=True)

    def _tell(self) -> None:
        self._told_s = time.monotonic()
        seconds = self._told_s - self._began_s
        print(
            f"{self._over} runs in {seconds:.0f} s, {self._over / seconds:.0f} a second, "
            f"{len(self._traces)} distinct traces, {self._deaths} deaths; failed: "
            f"{len(self._failed)} {self._failed or ''}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
