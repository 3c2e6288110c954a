"""
tune(): runs a loader with other options, and says which to set.

A run gives the times of its batches. From them the model (metrics/tuner.py) predicts the loop with
other numbers of workers and depths, the best one is run, and its times correct the prediction.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.utils.data

from shmloader.dataloader import DataLoader, wrap
from shmloader.memory import limits
from shmloader.memory.segment import default_ring_bytes
from shmloader.metrics.case import Case, Setting
from shmloader.metrics.model import CYCLE, DYNAMIC
from shmloader.metrics.report import FEWEST_BATCHES
from shmloader.metrics.timeline import timeline_of
from shmloader.metrics.tuner import DEPTHS, NEAR, SLOTS_TO_HOLD, Tuner, counts_from
from shmloader.metrics.words import argument, cores, duration, percent, size
from shmloader.processes import scheduling
from shmloader.trainer import together
from shmloader.trainer.budget import spare_slots
from shmloader.trainer.service import LAYOUT, why_unserved

Step = Callable[[Any], Any] | float | None
_Key = tuple[int, int, str]  # workers, depth, assignment

_RUNS_MAX = 6
_LIMITS = ("slots", "ring_bytes")
_STEADY = 4  # times the batches that are ahead: an epoch of fewer is all start
_RING_BYTES_MIN = 64 << 20
_FEWEST_PER_WORKER = 6  # batches of a run: a worker's first ones are no measure


class NotTunable(TypeError):
    """What make_loader() made cannot be run with other options; the text says why."""


class TooFewBatches(ValueError):
    """A run had too few batches to measure; the text says how many."""


@dataclass(frozen=True)
class Run:
    """
    A loop that was run, or predicted.

    Attributes:
        num_workers, prefetch_factor, assignment: Its options.
        batches_per_s: Its rate.
        wait_share: The part of the time that it waited, from 0 to 1.
        predicted: True if it was not run.
    """

    num_workers: int
    prefetch_factor: int
    batches_per_s: float
    wait_share: float
    predicted: bool = False
    assignment: str = CYCLE


@dataclass(frozen=True)
class Tuned:
    """
    Options for a loader. `str()` says them to people, with a line to paste.

    Attributes:
        options: num_workers, prefetch_factor, slots and ring_bytes, by name; and assignment, if it
            is "dynamic".
        batches_per_s: The rate to expect.
        wait_share: The part of the time that the loop will wait.
        before: The loop as it was; with one worker, if it had none.
        reasons: Why, a line each.
        curve: What was run, and what is predicted around the choice.
    """

    options: dict[str, Any]
    batches_per_s: float
    wait_share: float
    before: Run
    reasons: tuple[str, ...] = ()
    curve: tuple[Run, ...] = field(default=())

    @property
    def line(self) -> str:
        """The options as arguments to paste."""
        return ", ".join(argument(name, value) for name, value in self.options.items())

    def __str__(self) -> str:
        """Say the options, the reasons and the curve."""
        before = self.before
        rows = [
            f"  {run.num_workers:>7} {run.prefetch_factor:>8} {run.batches_per_s:>10.4g} "
            f"{percent(run.wait_share):>7}  {'predicted' if run.predicted else 'measured'}"
            f"{', dynamic' if run.assignment == DYNAMIC else ''}"
            for run in self.curve
        ]
        return "\n".join(
            [
                self.line,
                f"expected: {self.batches_per_s:.4g} batches/s, waiting {percent(self.wait_share)} "
                f"of the time; before: {before.batches_per_s:.4g} batches/s, waiting "
                f"{percent(before.wait_share)}, with num_workers={before.num_workers}, "
                f"prefetch_factor={before.prefetch_factor}{_said(before.assignment)}",
                *self.reasons,
                "  workers prefetch  batches/s   waits",
                *rows,
            ]
        )


def tune(
    make_loader: Callable[[], Any],
    step: Step = None,
    *,
    seconds: float = 60.0,
    tell: Callable[[str], None] | None = None,
) -> Tuned:
    """
    Find num_workers, prefetch_factor, assignment, slots and ring_bytes for a loader.

    It is run several times, for some seconds each, with the step behind each batch.

    Args:
        make_loader: Makes the loader: torch's class, a subclass or ours. It is called once; runs
            with other options share its dataset and sampler.
        step: What the training does with a batch: a function of it, or the seconds it takes. None
            tunes for the rate of the data alone.
        seconds: The time for all runs together, besides the start of their workers.
        tell: Called with a line before each run.

    Raises:
        TypeError: make_loader() made no loader that can be served.
        ValueError: The loader's epochs have too few batches to measure, or a time is negative or
            not finite. What the loader and the step raise is raised as it is.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds is {seconds}: it must be above 0, and finite")
    if isinstance(step, (int, float)) and not 0 <= step < math.inf:
        raise ValueError(f"step is {step} seconds: it must be 0 or more, and finite")
    loader = make_loader()
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise NotTunable(f"make_loader() made a {type(loader).__name__}, not a torch DataLoader")
    reason = why_unserved(loader)
    if reason:
        raise NotTunable(reason)
    return _Search(loader, step, seconds, tell or (lambda line: None)).tuned()


class _Search:
    """The runs of one loader."""

    def __init__(
        self, loader: Any, step: Step, seconds: float, tell: Callable[[str], None]
    ) -> None:
        self._loader = loader
        self._step = _step_of(step)
        self._seconds = seconds / _RUNS_MAX
        self._deadline = time.monotonic() + seconds
        self._tell = tell
        self._cases: dict[_Key, Case] = {}

    def tuned(self) -> Tuned:
        assignment = getattr(self._loader, "assignment", CYCLE)
        first = (self._loader.num_workers or 1, self._loader.prefetch_factor or 2, assignment)
        case = self._run(*first, as_it_is=True)
        before = self._ran(first)
        if self._has_limits:  # the other runs have none, and this one is no measure for them
            del self._cases[first]
        # Once for the number of workers, and again as long as a run says something else.
        wanted = self._choose(case)
        for _ in range(_RUNS_MAX - 2):
            if wanted in self._cases or time.monotonic() > self._deadline:
                break
            try:
                case = self._run(*wanted)
            except TooFewBatches as error:
                self._tell(f"left out: {error}")
                break
            wanted = self._choose(case)
        if not self._cases:
            self._cases[first] = case
        return self._result(before)

    @property
    def _has_limits(self) -> bool:
        """True if the loader has a number of slots or of bytes of its own."""
        return any(getattr(self._loader, name, None) is not None for name in _LIMITS)

    def _choose(self, case: Case) -> _Key:
        """
        Predict what is best: the fewest workers that come near the best rate, then the least depth.

        Depth costs memory, workers cost processes; so single slow batches are met by dynamic
        assignment, which costs neither, and by depth.
        """
        tuner = Tuner(case)
        least = self._loader.prefetch_factor or 2
        depths = [each for each in DEPTHS if each > least]
        # A worker without a batch in an epoch is of no use.
        counts = [each for each in counts_from(1) if each <= (case.epoch.length or math.inf)]
        tried = tuner.settings(counts or [1], (least, *depths[1::2]), tuner.assignments)
        best = tuner.choose(tried).setting
        return best.workers, best.prefetch_factor, best.assignment

    def _run(self, workers: int, depth: int, assignment: str, as_it_is: bool = False) -> Case:
        """
        Run the loader for a while; what it did behind the start of its workers.

        Args:
            as_it_is: Keep the limits of slots and bytes that it has, which were made for other
                numbers of workers.
        """
        self._tell(f"running {workers} workers, prefetch_factor={depth}{_said(assignment)}")
        loader = self._served()
        options = {"num_workers": workers, "prefetch_factor": depth, "assignment": assignment}
        wanted = {**options, **({} if as_it_is else dict.fromkeys(_LIMITS))}
        before = {name: getattr(loader, name) for name in wanted}
        _set(loader, wanted)
        try:
            case = self._measure(loader)
        finally:
            loader.close()
            _set(loader, before)
        self._cases[workers, depth, assignment] = case
        return case

    def _served(self) -> DataLoader[Any]:
        if isinstance(self._loader, DataLoader):
            return self._loader
        try:
            return wrap(self._loader)
        except TypeError as error:
            raise NotTunable(str(error)) from error

    def _measure(self, loader: Any) -> Case:
        workers, depth = loader.num_workers, loader.prefetch_factor
        fewest = max(4 * FEWEST_BATCHES, _FEWEST_PER_WORKER * workers) + workers * depth
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
                lasted_s = time.monotonic() - begun
                # Twice the time if there are few batches in it; a long epoch ends then.
                is_late = lasted_s > 2 * self._seconds
                if is_late or (lasted_s > self._seconds and count >= fewest):
                    break
            best = self._case_of(loader) or best
            if time.monotonic() - begun > self._seconds or best is None:
                break
        if best is None:
            raise TooFewBatches(
                f"{count} batches came in {duration(time.monotonic() - started)}, too few to "
                "measure: give more seconds, or a loader with longer epochs"
            )
        return best

    @staticmethod
    def _case_of(loader: Any) -> Case | None:
        service, workers, depth = loader._service, loader.num_workers, loader.prefetch_factor
        slots = loader.slots or workers * depth + SLOTS_TO_HOLD
        epoch = service.pool.history.epochs()[-1]
        timeline = timeline_of(service.pool.logs(), LAYOUT, epoch.number)
        setting = Setting(
            workers=workers,
            prefetch_factor=depth,
            in_order=loader.in_order,
            assignment=loader.assignment,
            may_be_dynamic=together.may_be_dynamic(loader, loader._options()),
            may_have_threads=together.may_have_threads(loader, loader._options()),
            is_nice=loader.nice > 0,
            slots=slots,
            chosen_slots=loader.slots,
            ring_bytes=loader.ring_bytes or default_ring_bytes(),
            cores=scheduling.cores(),
            ranks=limits.ranks(),
            persistent=bool(loader.persistent_workers),
            spare=spare_slots(workers, depth, slots),
            most_bytes=default_ring_bytes(),
        )
        steady = timeline.after(min(setting.workers * setting.prefetch_factor, len(timeline) // 4))
        return Case(epoch, steady, setting) if len(steady) >= FEWEST_BATCHES else None

    # The result

    def _result(self, before: Run) -> Tuned:
        runs = {key: self._ran(key) for key in self._cases}
        best_rate = max(run.batches_per_s for run in runs.values())
        good = [key for key, run in runs.items() if run.batches_per_s * NEAR >= best_rate]
        chosen = min(good, key=lambda key: (key[0] * (1 + key[1] / 100), key))
        case, run = self._cases[chosen], runs[chosen]
        tuner = Tuner(case)
        slots = tuner.slots_for(*chosen[:2])
        needed = tuner.bytes_for(slots)
        options: dict[str, Any] = {
            "num_workers": chosen[0],
            "prefetch_factor": chosen[1],
            "slots": slots,
            "ring_bytes": min(max(needed, _RING_BYTES_MIN), default_ring_bytes()),
        }
        if chosen[2] == DYNAMIC:
            options["assignment"] = DYNAMIC
        return Tuned(
            options,
            run.batches_per_s,
            run.wait_share,
            before,
            self._reasons(case, chosen),
            tuple(sorted([*runs.values(), *self._around(case, chosen)], key=_by_options)),
        )

    def _ran(self, key: _Key) -> Run:
        case = self._cases[key]
        facts, epoch, (workers, depth, assignment) = case.facts, case.epoch, key
        is_whole = epoch.step.count == epoch.batches  # the last step ends with the epoch
        length = epoch.length or (epoch.batches if is_whole else math.inf)
        rate, waits = facts["batches_per_s"], facts["wait_share"]
        if length < _STEADY * workers * depth and epoch.step.count:
            # Most batches were ordered at once, at its start: what came behind that is no rate.
            steps_s = epoch.step.total_s / epoch.step.count * epoch.batches
            both_s = epoch.next.total_s + steps_s
            rate, waits = epoch.batches / both_s, epoch.next.total_s / both_s
        return Run(workers, depth, rate, waits, assignment=assignment)

    def _around(self, case: Case, chosen: _Key) -> list[Run]:
        tuner = Tuner(case)
        workers, depth, assignment = chosen
        counts = (workers // 2, workers - 1, workers + 1, 2 * workers)
        keys = {
            *((each, depth, assignment) for each in counts if each > 0),
            *((workers, each, assignment) for each in (2, 4, 8, 16) if each != depth),
            *((workers, depth, each) for each in tuner.assignments),
        }
        found = []
        for key in keys - self._cases.keys():
            count, ahead, who = key
            (setting,) = tuner.settings([count], [ahead], [who])
            guess = tuner.predict(setting)
            found.append(Run(count, ahead, 1 / guess.batch_s, guess.wait_share, True, who))
        return found

    def _reasons(self, case: Case, chosen: _Key) -> tuple[str, ...]:
        facts, tuner = case.facts, Tuner(case)
        made = float(case.making.mean())
        lines = [
            f"num_workers: a worker has a batch in hand for {duration(made)}, and the step uses it "
            f"for {duration(facts['step_s'])}"
        ]
        if tuner.cores_bound_s > 0.8 / facts["batches_per_s"]:
            lines.append(
                f"  limited by {cores(tuner.cores, case.setting.ranks)}: a batch costs "
                f"{duration(tuner.worker_cpu_s)} of processor time"
            )
        spread = float(case.making.max() / max(made, 1e-9))
        lines.append(
            f"prefetch_factor: the longest batch took {spread:.1f} times the mean; "
            f"{chosen[0] * chosen[1]} batches are ahead of the step"
        )
        if chosen[2] == DYNAMIC:
            lines.append(
                "assignment: while a worker is at a slow sample, the others are asked; if samples "
                'draw random numbers, pass seed_by="batch" too'
            )
        lines.append(
            f"slots: those, and {facts['held_batches']:.1f} that the step holds at once; "
            f"ring_bytes: as many batches of {size(tuner.batch_bytes)}, and a quarter"
        )
        return tuple(lines)


def _set(loader: Any, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        setattr(loader, name, value)


def _said(assignment: str) -> str:
    return "" if assignment == CYCLE else f", {argument('assignment', assignment)}"


def _by_options(run: Run) -> _Key:
    return run.num_workers, run.prefetch_factor, run.assignment


def _step_of(step: Step) -> Callable[[Any], Any]:
    if step is None:
        return lambda batch: None
    if isinstance(step, (int, float)):
        seconds = float(step)
        return lambda batch: time.sleep(seconds)
    return step
