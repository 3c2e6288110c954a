"""The command: phases one by one, a line of JSON on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import signal
import sys
import warnings
from itertools import accumulate, pairwise

from bench.loads.pools import SEED
from shmloader.errors import RetentionWarning
from tests.deaths import soak
from tests.deaths.soak import flatness
from tests.deaths.soak.flatness import Change
from tests.deaths.soak.phases import PHASES, Phase
from tests.deaths.soak.trial import Result, Trial


def run(arguments: list[str]) -> int:
    """Go through the phases; the exit code is 0 if all was as it should be."""
    options = _options(arguments)
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    warnings.simplefilter("ignore", RetentionWarning)  # phases keep many batches
    phases = [phase for phase in PHASES if phase.name in (options.phase or phase.name)]
    # Without a batch for long, the alarm shows where it hangs, and ends this process.
    faulthandler.register(signal.SIGALRM, chain=True)
    trials = [
        Trial(phase, batches, options)
        for phase, batches in zip(phases, shares(phases, options.batches), strict=True)
    ]
    try:
        idle = _try(trials)
    except KeyboardInterrupt:
        return 130
    return _report([trial.result for trial in trials], idle, options)


def shares(phases: list[Phase], batches: int) -> list[int]:
    """Divide the batches among the phases, at least one for each."""
    total = sum(phase.share for phase in phases)
    ends = [round(batches * part / total) for part in accumulate(phase.share for phase in phases)]
    return [max(1, end - begin) for begin, end in pairwise([0, *ends])]


def _try(trials: list[Trial]) -> list[Change]:
    """Make all runs, and compare what is held before and after those in which workers die."""
    for trial in trials:
        result = trial.result
        trial.deliver_calmly()
        _say(f"{result.phase}: {result.batches} batches")
    flatness.settle()
    ctypes.CDLL(None).prctl(36, 1)  # replacements whose nursery was killed are to be counted too
    before = flatness.sample()
    for trial in trials:
        trial.deliver_with_deaths()
        _say(_summary(trial.result))
    return flatness.between(before, flatness.sample())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _summary(result: Result) -> str:
    verdict = "; ".join(result.mistakes) or "as it should be"
    return (
        f"{result.phase}: {result.killed} killed, {result.nurseries} nurseries killed, "
        f"{result.stopped} stopped, {result.restarts} replaced: {verdict}"
    )


def _report(results: list[Result], idle: list[Change], options: argparse.Namespace) -> int:
    """Print the mistakes and the record."""
    mistakes = [mistake for result in results for mistake in result.mistakes]
    mistakes += [f"without a loader: {change}" for change in idle if change.is_growth]
    for mistake in mistakes:
        _say(f"WRONG: {mistake}")
    print(json.dumps(_record(results, idle, mistakes)))
    return 1 if mistakes else 0


_SUMS = ("batches", "torch_batches", "killed", "nurseries", "stopped", "restarts", "hung")


def _record(results: list[Result], idle: list[Change], mistakes: list[str]) -> dict:
    """Put all of it into one record."""
    return {
        "correct": not mistakes,
        "mistakes": mistakes,
        **{name: sum(getattr(each, name) for each in results) for name in _SUMS},
        "phases": [{**vars(each), "changes": _figures(each.changes)} for each in results],
        "no_loader": _figures(idle),
    }


def _figures(changes: list[Change]) -> dict[str, list[float]]:
    return {each.quantity.key: [each.first, each.last] for each in changes}


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.deaths.soak",
        description=soak.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--period", type=float, default=0.2, help="seconds between two kills")
    parser.add_argument("--kills", type=int, default=0, help="at most so many in each phase")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--phase", action="append", choices=[phase.name for phase in PHASES])
    return parser.parse_args(arguments)
