"""How many runs of each kind a second of one core is enough for."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.simulation.case import Case, draw
from tests.simulation.stage import Stage


def _with_death(seed: int) -> Case:
    return Case(seed, deaths=(50 + seed * 37 % 1000,), restarts=1)


KINDS: dict[str, Callable[[int], Case]] = {
    "20 answers, 2 workers": Case,
    "the same, and one death is healed": _with_death,
    "a pool, 20 calls, 2 workers": lambda seed: Case(seed, client="pool"),
    "a publisher, 20 batches, 2 subscribers": lambda seed: Case(seed, client="publisher"),
    "as they are drawn": draw,
    "20 answers, 2 workers, all forked anew": lambda seed: Case(seed, anew=True),
}


def tell(runs: int) -> int:
    """Print a table; the exit code is 0 if no run failed."""
    print(f"{runs} runs of each kind, on one core\n")
    print("| run | ms of a processor | a second-core | steps | changes of process |")
    print("| --- | --- | --- | --- | --- |")
    failed = 0
    for name, make in KINDS.items():
        stage = Stage(core=min(os.sched_getaffinity(0)))
        try:
            before_s = stage.rest()
            outcomes = [stage.play(make(seed)) for seed in range(runs)]
            each_s = (stage.rest() - before_s) / runs
        finally:
            stage.close()
        failed += sum(bool(outcome["failure"]) for outcome in outcomes)
        events, switches = (sum(o[key] for o in outcomes) / runs for key in ("events", "switches"))
        rate = f"{1000 * each_s:.1f} | {1 / each_s:.0f}"
        print(f"| {name} | {rate} | {events:.0f} | {switches:.0f} |", flush=True)
    return int(failed > 0)
