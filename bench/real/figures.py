"""What the epochs of both contenders say: medians, ratios within a round, and if all was right."""

from typing import Any

from bench.driver import middle, ratio
from bench.real.contender import BASELINE, SUBJECT
from bench.real.training import Epoch
from bench.real.turns import Run

Record = dict[str, Any]


def records(name: str, title: str, runs: dict[str, Run]) -> list[Record]:
    """
    Make a record for each contender.

    Returns:
        Per step: ms, their list over the rounds, CPU ms of the trainer and of all processes, page
        faults of the trainer and of the workers; the share of the time in which the trainer
        waited, and the peak of memory. Medians over the rounds; the ratio to torch is taken within
        each round.
    """
    wrong = mistake(runs)
    rounds = {name: [_per_step(epoch) for epoch in run.epochs] for name, run in runs.items()}
    return [
        {
            "training": name,
            "title": title,
            "contender": contender,
            "steps": len(run.epochs[0].losses),
            **{figure: middle(rounds[contender], figure) for figure in rounds[contender][0]},
            "rounds_ms": [each["ms"] for each in rounds[contender]],
            "times_torch": ratio(rounds[BASELINE], rounds[contender], "ms"),
            "peak_mb": run.peak_mb,
            "last_loss": run.losses()[-1],
            "correct": wrong is None,
            "mistakes": {name: wrong} if wrong else {},
            "stats": run.stats,
        }
        for contender, run in runs.items()
    ]


def mistake(runs: dict[str, Run]) -> str | None:
    """Say what is wrong: losses that differ in any bit, or a loader that was not ours; or None."""
    theirs, ours = runs[BASELINE].losses(), runs[SUBJECT].losses()
    if len(theirs) != len(ours):
        return f"{len(ours)} steps instead of {len(theirs)}"
    for step, (right, found) in enumerate(zip(theirs, ours, strict=True)):
        if right != found:  # true of nan as well: such a training shows nothing
            return f"step {step}: the loss is {found!r}, with torch's loader {right!r}"
    served = runs[SUBJECT].stats.get("batches")
    return None if served == len(ours) else f"{served} of {len(ours)} batches were ours"


def _per_step(epoch: Epoch) -> dict[str, float]:
    steps = len(epoch.losses)
    return {
        "ms": 1e3 * epoch.wall_s / steps,
        "wait": epoch.wait_s / epoch.wall_s,
        "trainer_cpu_ms": 1e3 * epoch.trainer_cpu_s / steps,
        "all_cpu_ms": 1e3 * (epoch.trainer_cpu_s + epoch.worker_cpu_s) / steps,
        "trainer_faults": epoch.trainer_minor_faults / steps,
        "worker_faults": epoch.worker_minor_faults / steps,
    }
