"""What `shmloader bench --headspace` does and says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

from shmloader.cli.headspace.measure import Headspace, Round, measure
from shmloader.cli.targets import load

_LITTLE = 1.05  # a gain that the spread of the rounds could hide


def measure_headspace(loader_target: str, step_target: str | None, seconds: float) -> str:
    """Measure the user's loader, with the user's step if there is one, and say what was found."""
    make_loader = load(loader_target)
    step = load(step_target) if step_target else None
    if sys.stderr.isatty():
        print(f"measuring for {seconds:g} s", file=sys.stderr)
    measured = measure(make_loader(), step, seconds)
    return "\n".join(sentences(measured))


def sentences(measured: Headspace) -> list[str]:
    """Say the two rates and what there is to gain; the medians of the rounds, and their range."""
    loaded = _rate(measured.loaded)
    if not measured.free:
        return [
            f"the loader alone   {_rates(measured.loaded, 'batches')}",
            "the gain depends on your step: pass it with --step module:function, a function that "
            "takes a batch",
        ]
    free = _rate(measured.free)
    waits = sum(each.next_s for each in measured.loaded)
    part = waits / sum(each.wall_s for each in measured.loaded)
    return [
        f"with the loader    {_rates(measured.loaded, 'steps')}; {part:.0%} of the time in next()",
        f"if data were free  {_rates(measured.free, 'steps')}",
        f"to gain            {_gain(loaded, free)}",
    ]


def _rate(rounds: Sequence[Round]) -> float:
    return median(each.steps / each.wall_s for each in rounds)


def _rates(rounds: Sequence[Round], what: str) -> str:
    rates = [each.steps / each.wall_s for each in rounds]
    return f"{median(rates):.4g} {what} per second ({min(rates):.4g} to {max(rates):.4g})"


def _gain(loaded: float, free: float) -> str:
    if free < loaded * _LITTLE:
        return "nothing: the step is the limit"
    saved_ms = 1e3 / loaded - 1e3 / free
    return (
        f"up to {free / loaded:.2f} times the rate: {saved_ms:.4g} ms of each step "
        f"of {1e3 / loaded:.4g} ms go to data"
    )
