"""
`shmloader bench --headspace`: how fast a step would run if its data were free.

The same step runs with its loader, then with batches that are held: two rates, one program.

Both are measured in rounds of about equal time, after a warm-up that is not counted: the first
steps compile and allocate, and the batches that workers fetched meanwhile come for free. An epoch
that ends in mid-round is followed by the next one, whose start counts, as it does in a training.
No batch is held beyond its step while the loader is timed, because held ones cost slots. No worker
fetches while held batches are replayed: the processor is the step's alone, as if data cost nothing.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import cycle
from statistics import median
from typing import Any, NamedTuple

import torch

import shmloader
from shmloader.cli.command import CommandError, load_function

ROUNDS = 5  # of each kind
_HELD = 4  # batches that are replayed
_WARM_STEPS_MIN = 5
_LITTLE = 1.05  # a gain that the spread of the rounds could hide


class Round(NamedTuple):
    """What happened in one round: its steps, its time, and the part of it in next()."""

    steps: int
    wall_s: float
    next_s: float


class Headspace(NamedTuple):
    """The rounds with the loader, and those with held batches; none of these without a step."""

    loaded: list[Round]
    free: list[Round]


def measure(
    loader: Iterable[Any], step: Callable[[Any], object] | None, seconds: float
) -> Headspace:
    """Run the step with the loader, which is closed, then with held batches if there is a step."""
    phase_s = seconds / 2 if step else seconds  # no step or batch is cut short
    batches = _endless(loader)
    run = step or (lambda batch: None)
    _warm_up(batches, run, _warm_steps(loader), phase_s / 3)
    loaded = [_round(batches, run, phase_s * 2 / 3 / ROUNDS) for _ in range(ROUNDS)]
    held = [next(batches) for _ in range(_HELD if step else 0)]
    batches.close()
    with contextlib.suppress(TypeError):  # it is no loader, and holds none
        shmloader.close(loader)  # torch's persistent workers stay, and idle
    if not held:
        return Headspace(loaded, [])
    again = cycle(held)
    _warm_up(again, run, _WARM_STEPS_MIN, phase_s / 3)
    free = [_round(again, run, phase_s * 2 / 3 / ROUNDS) for _ in range(ROUNDS)]
    return Headspace(loaded, free)


def _endless(loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the batches of a loader, epoch after epoch."""
    has_any = True
    while has_any:
        has_any = False
        for batch in loader:
            has_any = True
            yield batch
            del batch  # the next one may need its slot
    raise CommandError("the loader delivered no batch, so nothing can be measured")


def _warm_steps(loader: Any) -> int:
    """Count the batches that may be ready before the step asks for one, and some more."""
    ahead = getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", None) or 0)
    return max(_WARM_STEPS_MIN, int(ahead) + 2)


def _warm_up(
    batches: Iterator[Any], step: Callable[[Any], object], steps: int, longest_s: float
) -> None:
    deadline = time.monotonic() + longest_s
    for _ in range(steps):
        step(next(batches))
        if time.monotonic() > deadline:
            break
    _synchronize()


def _round(batches: Iterator[Any], step: Callable[[Any], object], seconds: float) -> Round:
    begin = now = time.perf_counter()
    steps, next_s = 0, 0.0
    while steps == 0 or now - begin < seconds:
        asked = now
        batch = next(batches)
        next_s += time.perf_counter() - asked
        step(batch)
        steps += 1
        now = time.perf_counter()
    _synchronize()
    return Round(steps, time.perf_counter() - begin, next_s)


def _synchronize() -> None:
    """Wait for what steps have queued on an accelerator, if the step began to use one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measure_headspace(loader_target: str, step_target: str | None, seconds: float) -> str:
    """Measure the user's loader, with the user's step if there is one, and say what was found."""
    make_loader = load_function(loader_target)
    step = load_function(step_target) if step_target else None
    if sys.stderr.isatty():
        print(f"measuring for {seconds:g} s", file=sys.stderr)
    measured = measure(make_loader(), step, seconds)
    return "\n".join(sentences(measured))


def sentences(measured: Headspace) -> list[str]:
    """Say the two rates and what there is to gain; the medians of the rounds, and their range."""
    if not measured.free:
        return [
            f"the loader alone   {_said(measured.loaded, 'batches')}",
            "the gain depends on your step: pass it with --step module:function, a function that "
            "takes a batch",
        ]
    waits = sum(each.next_s for each in measured.loaded)
    part = waits / sum(each.wall_s for each in measured.loaded)
    return [
        f"with the loader    {_said(measured.loaded, 'steps')}; {part:.0%} of the time in next()",
        f"if data were free  {_said(measured.free, 'steps')}",
        f"to gain            {_gain(measured)}",
    ]


def _rates(rounds: Sequence[Round]) -> list[float]:
    return [each.steps / each.wall_s for each in rounds]


def _said(rounds: Sequence[Round], what: str) -> str:
    rates = _rates(rounds)
    return f"{median(rates):.4g} {what} per second ({min(rates):.4g} to {max(rates):.4g})"


def _gain(measured: Headspace) -> str:
    loaded, free = (median(_rates(rounds)) for rounds in measured)
    if free < loaded * _LITTLE:
        return "nothing: the step is the limit"
    saved_ms = 1e3 / loaded - 1e3 / free
    return (
        f"up to {free / loaded:.2f} times the rate: {saved_ms:.4g} ms of each step "
        f"of {1e3 / loaded:.4g} ms go to data"
    )
