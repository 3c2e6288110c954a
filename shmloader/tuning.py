"""
tune(): runs a loader with other options, and says which to set.

A run gives the times of its batches. From them the model (advice/tuner.py) predicts the loop with
other numbers of workers and depths, the best one is run, and its times correct the prediction.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.utils.data

from shmloader.advice.case import Case
from shmloader.advice.changes import OF_DRAWS, other_programs
from shmloader.advice.report import FEWEST_BATCHES, case_of, judged
from shmloader.advice.tuner import DEPTHS, NEAR, Tuner, counts_from
from shmloader.dataloader import DataLoader, wrap
from shmloader.setup import requirements
from shmloader.stats.setting import CYCLE, DYNAMIC
from shmloader.stats.words import argument, duration, percent, rate, times

Step = Callable[[Any], Any] | float | None
_Key = tuple[int, int, str]  # workers, depth, assignment

_OF_AUTO = 2  # workers to begin with, where the loader finds how many
_RUNS_MAX = 6
_RUNS_OF_THREADS, _THREADS_MAX = 3, 512
_STEADY = 4  # times the batches that are ahead: an epoch of fewer is all start
_LEAST_ADVISED_BYTES = 64 << 20  # of ring_bytes: less saves nothing
_FEWEST_PER_WORKER = 6  # batches of a run: a worker's first ones are no measure


class NotTunable(TypeError):
    """What make_loader() made cannot be run with other options; the text says why."""


class TooFewBatches(ValueError):
    """A run had too few batches to measure; the text says how many."""


@dataclass(frozen=True)
class Run:
    """
    A loop that was measured.

    Attributes:
        num_workers, prefetch_factor, assignment: The loader's options.
        batches_per_s: The rate.
        wait_share: The part of the time that the loop waited, from 0 to 1.
    """

    num_workers: int
    prefetch_factor: int
    batches_per_s: float
    wait_share: float
    assignment: str = CYCLE


@dataclass(frozen=True)
class Tuned:
    """
    Options for a loader; `str()` gives them as text, with a line to paste.

    Attributes:
        options: Those to change, by name: of num_workers, prefetch_factor, assignment and
            fetch_threads, and slots and ring_bytes if the loader's own are too few. Empty if
            nothing would be gained.
        batches_per_s: The rate to expect.
        wait_share: The part of the time that the loop will wait.
        before: The loop as it was; with one worker, if the loader had none.
        reasons: The reasons for the options, a line each.
        curve: All loops that were measured.
    """

    options: dict[str, Any]
    batches_per_s: float
    wait_share: float
    before: Run
    reasons: tuple[str, ...] = ()
    curve: tuple[Run, ...] = ()

    @property
    def line(self) -> str:
        """The options as arguments to paste; empty if the loader is to stay as it is."""
        return ", ".join(argument(name, value) for name, value in self.options.items())

    def __str__(self) -> str:
        """Say the options, the reasons and the curve."""
        now, then = (
            f"{rate(each.batches_per_s)} batches/s, waiting {percent(each.wait_share)} of the time"
            for each in (self, self.before)
        )
        had = self.before
        options = f"num_workers={had.num_workers}, prefetch_factor={had.prefetch_factor}"
        rows = [
            f"  {run.num_workers:>7} {run.prefetch_factor:>8} {rate(run.batches_per_s):>10} "
            f"{percent(run.wait_share):>7}{_said(run.assignment)}"
            for run in self.curve
        ]
        lines = [
            self.line or "no option to change: no other ones that were tried gain anything",
            f"expected: {now}; before: {then}, with {options}{_said(had.assignment)}",
            *self.reasons,
            "  workers prefetch  batches/s   waits",
            *rows,
        ]
        return "\n".join(lines)


def tune(
    make_loader: Callable[[], Any],
    step: Step = None,
    *,
    seconds: float = 60.0,
    tell: Callable[[str], None] | None = None,
) -> Tuned:
    """
    Find num_workers, prefetch_factor, assignment, slots and ring_bytes for a loader.

    The loader is run several times, for some seconds each, with the step after each batch. If it
    has fetch_threads, tune() finds their number too. Of a loader with `num_workers="auto"`, which
    finds how many workers it needs, tune() finds the other options.

    Args:
        make_loader: Returns the loader: torch's class, a subclass or shmloader's. It is called
            once; runs with other options share the loader's dataset and sampler.
        step: What the training loop does with a batch: a function of the batch, or the seconds that
            it takes. None tunes for the highest rate of batches.
        seconds: The time for all runs together, without the start of their workers.
        tell: Called with a line of progress before each run.

    Raises:
        TypeError: make_loader() did not return a loader that can be served.
        ValueError: The loader's epochs have too few batches to measure, or a time is negative or
            not finite. Errors of the loader and the step are raised unchanged.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds is {seconds}: it must be above 0, and finite")
    if isinstance(step, (int, float)) and not 0 <= step < math.inf:
        raise ValueError(f"step is {step} seconds: it must be 0 or more, and finite")
    if requirements.LACKING is not None:
        raise NotTunable(f"tune() measures slots, and {requirements.LACKING}")
    loader = make_loader()
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise NotTunable(
            f"make_loader() returned {type(loader).__name__}, not a torch DataLoader: pass a "
            "function that returns a loader"
        )
    try:
        served = loader if isinstance(loader, DataLoader) else wrap(loader)
    except TypeError as error:
        raise NotTunable(str(error)) from error
    return _Search(served, step, seconds, tell or (lambda line: None)).tuned()


class _Search:
    """The runs of one loader of ours."""

    def __init__(
        self, loader: DataLoader[Any], step: Step, seconds: float, tell: Callable[[str], None]
    ) -> None:
        self._loader = loader
        self._step = _step_of(step)
        self._threads = loader.fetch_threads
        self._is_auto = loader.max_workers is not None
        self._rates_of_threads: dict[int, float] = {}  # batches per second
        self._seconds = seconds / (_RUNS_MAX + (_RUNS_OF_THREADS if self._threads else 0))
        self._deadline = time.monotonic() + seconds
        self._tell = tell

    def tuned(self) -> Tuned:
        loader = self._loader
        workers = _OF_AUTO if self._is_auto else loader.num_workers or 1
        first: _Key = (workers, loader.prefetch_factor or 2, loader.assignment)
        case = self._run(*first, as_it_is=True)
        before, cases = _ran(case), {first: case}
        if loader.slots is not None or loader.ring_bytes is not None:
            cases = {}  # the other runs have no limits, and it is no measure for them
        if self._threads:
            case = cases[first] = self._find_threads(first, case)
        # Once for the number of workers, and again as long as a run says something else.
        wanted = self._choose(case)
        try:
            while wanted not in cases and len(cases) < _RUNS_MAX - 1 and self._has_time():
                case = cases[wanted] = self._run(*wanted)
                wanted = self._choose(case)
        except TooFewBatches as error:
            self._tell(f"this setting is skipped: {error}")
        return self._result(before, cases or {first: case})

    def _has_time(self) -> bool:
        return time.monotonic() < self._deadline

    def _find_threads(self, first: _Key, case: Case) -> Case:
        """Run with other numbers of fetching threads; take the fewest that come near the best."""
        cases = {self._threads: case}
        for count in [self._threads * 4, self._threads * 16, self._threads // 4]:
            if 0 < count <= _THREADS_MAX and self._has_time():
                self._threads = count
                with contextlib.suppress(TooFewBatches):
                    cases[count] = self._run(*first)
        rates = {count: each.facts["batches_per_s"] for count, each in sorted(cases.items())}
        self._threads = next(count for count in rates if rates[count] * NEAR >= max(rates.values()))
        self._rates_of_threads = rates
        return cases[self._threads]

    def _choose(self, case: Case) -> _Key:
        """
        Predict what is best: the fewest workers that come near the best rate, then the least depth.

        Depth costs memory, workers cost processes; so single slow batches are met by dynamic
        assignment, which costs neither, and by depth.
        """
        tuner, least = Tuner(case), self._loader.prefetch_factor or 2
        depths = [least, *[each for each in DEPTHS if each > least][1::2]]
        best = tuner.choose(counts_from(1), depths, tuner.assignments).setting
        return best.workers, best.prefetch_factor, best.assignment

    def _run(self, workers: int, depth: int, assignment: str, as_it_is: bool = False) -> Case:
        """Run the loader for a while, as_it_is with its own limits; what it did after its start."""
        count = times(workers, "worker")
        self._tell(f"running {count}, prefetch_factor={depth}{_said(assignment)}")
        wanted = {"num_workers": workers, "prefetch_factor": depth, "assignment": assignment}
        if self._threads:
            wanted["fetch_threads"] = self._threads
        if self._is_auto:
            wanted |= {"min_workers": None, "max_workers": None}
        if not as_it_is:
            wanted |= {"slots": None, "ring_bytes": None}
        before = {name: getattr(self._loader, name) for name in wanted}
        try:
            _set(self._loader, wanted)
            return self._measure(self._loader)
        finally:
            self._loader.close()
            _set(self._loader, before)

    def _measure(self, loader: Any) -> Case:
        workers = loader.num_workers
        fewest = max(4 * FEWEST_BATCHES, _FEWEST_PER_WORKER * workers)
        fewest += workers * loader.prefetch_factor
        started = begun = time.monotonic()
        count = 0
        best: Case | None = None
        while True:
            for batch in loader:
                if count == 0:
                    begun = time.monotonic()  # many workers take long to start
                self._step(batch)
                del batch
                count += 1
                # Twice the time if there are few batches in it; a long epoch ends then.
                longest_s = self._seconds * (1 if count >= fewest else 2)
                if time.monotonic() - begun > longest_s:
                    break
            best = _last_case(loader) or best
            if best is None:
                raise TooFewBatches(
                    f"{count} batches came in {duration(time.monotonic() - started)}, too few to "
                    "measure: pass more seconds, or a loader with longer epochs"
                )
            if time.monotonic() - begun > self._seconds:
                return best

    def _result(self, before: Run, cases: dict[_Key, Case]) -> Tuned:
        runs = {key: _ran(case) for key, case in cases.items()}
        best_rate = max(run.batches_per_s for run in runs.values())
        good = [key for key, run in runs.items() if run.batches_per_s * NEAR >= best_rate]
        chosen = min(good, key=lambda key: (key[0] * (1 + key[1] / 100), key))
        run, case = runs[chosen], cases[chosen]
        reasons = self._reasons(case, run)
        curve = tuple(runs[key] for key in sorted(runs))
        options = self._changes(chosen, case)
        if self._is_auto:
            options.pop("num_workers", None)
        elif "num_workers" in options:
            reasons.append('num_workers="auto" would find the number of workers while it runs')
        return Tuned(options, run.batches_per_s, run.wait_share, before, tuple(reasons), curve)

    def _changes(self, chosen: _Key, case: Case) -> dict[str, Any]:
        """List the options that are others than the loader's, or too few of it."""
        loader, tuner = self._loader, Tuner(case)
        workers, depth, assignment = chosen
        slots = tuner.setting(*chosen).slots
        needed = min(max(tuner.bytes_for(slots), _LEAST_ADVISED_BYTES), case.setting.most_bytes)
        has = {
            "num_workers": (loader.num_workers, workers),
            "prefetch_factor": (loader.prefetch_factor or 2, depth),
            "assignment": (loader.assignment, assignment),
            "fetch_threads": (loader.fetch_threads, self._threads),
        }
        changes: dict[str, Any] = {name: new for name, (old, new) in has.items() if new != old}
        # By default there are enough of both, unless so many batches are held.
        if slots > (case.setting.slots if loader.slots is None else loader.slots):
            changes["slots"] = slots
        if loader.ring_bytes is not None and loader.ring_bytes < needed:
            changes["ring_bytes"] = needed
        return changes

    def _reasons(self, case: Case, run: Run) -> list[str]:
        report = judged(case)
        # What is still advised would gain too little for its cost, or was tried.
        reasons = [report.lines[0], *other_programs(case)] if report.advice else [*report.lines]
        if _is_all_start(case):
            reasons.append(
                "epochs are short: the rates and waits here include their starts, which the line "
                "above leaves out. persistent_workers=True makes starts shorter"
            )
        if run.assignment == DYNAMIC:
            reasons.append(OF_DRAWS)
        if self._rates_of_threads:
            rates = self._rates_of_threads.items()
            tried = ", ".join(f"{rate(each)} with {count}" for count, each in rates)
            reasons.append(f"fetch_threads: {tried} batches/s")
        return reasons


def _last_case(loader: Any) -> Case | None:
    """Return what the loader's last epoch shows; None if it had too few batches."""
    setting = loader._service.setting(loader, loader._options())
    evidence = loader._service.last_epoch(setting)
    if evidence is None or len(evidence[1]) < FEWEST_BATCHES:
        return None
    return case_of(*evidence)


def _ran(case: Case) -> Run:
    epoch, now = case.epoch, case.setting
    batches_per_s, waits = case.facts["batches_per_s"], case.wait_share
    if _is_all_start(case):
        steps_s = epoch.step.total_s / epoch.step.count * epoch.batches
        both_s = epoch.next.total_s + steps_s
        batches_per_s, waits = epoch.batches / both_s, epoch.next.total_s / both_s
    return Run(now.workers, now.prefetch_factor, batches_per_s, waits, now.assignment)


def _is_all_start(case: Case) -> bool:
    """Returns True if most batches were ordered at once: what came after that is no rate."""
    epoch = case.epoch
    is_whole = epoch.step.count == epoch.batches  # the last step ends with the epoch
    length = epoch.length or (epoch.batches if is_whole else math.inf)
    return bool(length < _STEADY * case.setting.ahead and epoch.step.count)


def _set(loader: Any, options: dict[str, Any]) -> None:
    for name, value in options.items():
        setattr(loader, name, value)


def _said(assignment: str) -> str:
    return "" if assignment == CYCLE else f", {argument('assignment', assignment)}"


def _step_of(step: Step) -> Callable[[Any], Any]:
    if isinstance(step, (int, float)):
        seconds = float(step)
        return lambda batch: time.sleep(seconds)
    return step or (lambda batch: None)
