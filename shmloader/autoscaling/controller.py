"""
Decides how many workers there should be: windows of time in, a number of workers out.

Nothing is asked here, so a table and a simulated load test it. The rules:

- More, while the trainer waits for workers that are busy: as many as would make it wait no more,
  at most twice as many at once. Each step is a trial, which is undone if it was not worth them.
- Fewer, when workers have had little to do for some windows: as many as are busy, and some to
  spare. If the trainer waits then, that is undone.
- What was undone is not tried again for a while, and each time for twice as long; at once if the
  samples or the step take another time than before.
"""

import math
import operator
from dataclasses import dataclass

# All chosen; bench/questions/auto.py shows what comes of them.
WAITS = 0.05  # part of its time that the trainer waits, from which on it waits for workers
IDLE = 0.02  # and below which there may be too many of them
BUSY = 0.7  # part of their time that workers are busy, from which on more of them may help
WORTH = 0.25  # of what a worker made before, which each one more has to make
NOISE = 0.03  # of a rate, from one window to the next, at least
SPARE = 1.25  # workers for what keeps one busy: samples come in clusters
CALM = 3  # windows in a row in which there are too many workers
STEPS = 0.5  # part of its time that the trainer steps, below which it is not known how long
PATIENCE, PATIENCE_MAX = 4, 256  # windows until what was undone is tried again
SHIFT = 1.5  # times longer, or shorter: what was learnt holds no more
DOUBT_MAX = 8  # windows that differ as much, one after the other, until that is believed, at most


@dataclass(frozen=True)
class Sums:
    """
    What happened in some time.

    Attributes:
        seconds: How long it was.
        waited_s: Seconds that the trainer waited for a batch.
        delivered: Batches that it took.
        made: Batches that workers made.
        busy_s: Seconds that workers made batches, all together.
        computed_s: Of these, those in which they ran, or would have with a core for each.
    """

    seconds: float = 0.0
    waited_s: float = 0.0
    delivered: int = 0
    made: int = 0
    busy_s: float = 0.0
    computed_s: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        """Take two parts of a window together."""
        return Sums(*map(operator.add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True, kw_only=True)
class Window(Sums):
    """A time, and how many workers were there."""

    workers: int

    @property
    def waits(self) -> float:
        """The part of the time that the trainer waited."""
        return self.waited_s / self.seconds

    @property
    def busy(self) -> float:
        """The part of their time that workers were busy."""
        return self.busy_s / (self.seconds * self.workers)

    @property
    def rate(self) -> float:
        """Batches that were made in a second."""
        return self.made / self.seconds

    @property
    def batch_s(self) -> float:
        """Seconds that a worker takes for a batch."""
        return self.busy_s / max(1, self.made)

    @property
    def step_s(self) -> float:
        """Seconds that the trainer takes for a batch, without its waits."""
        return (self.seconds - self.waited_s) / max(1, self.delivered)

    @property
    def paces(self) -> tuple[float, float]:
        """Seconds of a batch and of a step, by which loads differ."""
        steps_s = max(self.seconds - self.waited_s, STEPS * self.seconds)
        return self.batch_s, steps_s / max(1, self.delivered)

    @property
    def computes(self) -> float:
        """The part of their work in which workers need a core."""
        return min(1.0, self.computed_s / self.busy_s) if self.busy_s > 0 else 1.0


@dataclass(frozen=True)
class Limits:
    """
    Attributes:
        least, most: Workers that the user allows.
        cores: For workers, as a number that may be a fraction.
        memory: Workers for which there is memory.
    """

    least: int
    most: int
    cores: float
    memory: int = 1 << 30

    def kept(self, workers: int) -> int:
        """As many of these as there may be."""
        return max(self.least, min(workers, self.most, self.memory))

    def sensible(self, window: Window) -> int:
        """How many have a core when they need one: those that wait do so without."""
        return self.kept(math.ceil(max(1.0, self.cores) / max(window.computes, 1e-3)))


class Controller:
    """Has seen some windows, and says after each how many workers there should be."""

    def __init__(self) -> None:
        self._trial: Window | None = None  # before the last change, until that is judged
        self._direction = 0  # of the last change: 1 is more, -1 is fewer
        self._patience = PATIENCE // 2
        self._rest = {1: 0, -1: 0}  # windows until there may be a change in that direction
        self._calm = 0
        self._noise = NOISE
        self._seen: dict[int, Window] = {}  # the last one with so many workers
        self._odd = 0  # windows in a row that were of another load, or of noise
        self._doubt = 1  # so many of them are another load

    def decide(self, window: Window, limits: Limits) -> int:
        """Say how many workers there should be, by one more window of time."""
        self._rest = {direction: max(0, left - 1) for direction, left in self._rest.items()}
        self._look_for_shift(window)
        trial, self._trial = self._trial, None
        if trial is not None and trial.workers != window.workers and self._fails(trial, window):
            self._note_change(trial.workers - window.workers)
            return limits.kept(trial.workers)
        if window.waits > WAITS and window.busy > BUSY:
            self._calm = 0
            wanted = self._more(window, limits.sensible(window))
        else:
            wanted = self._fewer(window)
        wanted = limits.kept(wanted)
        if wanted != window.workers:
            self._trial = window
            self._note_change(wanted - window.workers)
        return wanted

    def forget_trial(self) -> None:
        """Leave the last change as it is: no window will tell what came of it."""
        self._trial = None

    def _note_change(self, workers: int) -> None:
        """Leave the other direction alone for a while; for longer with each turn."""
        direction = 1 if workers > 0 else -1
        self._calm = 0
        if direction == -self._direction:
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        self._direction = direction
        self._rest[-direction] = self._patience

    def _fails(self, before: Window, now: Window) -> bool:
        """Returns True if the last change is to be undone."""
        ratio = now.workers / before.workers
        if _has_shifted(before, now, SHIFT * max(ratio, 1 / ratio)):
            return False  # by something else
        if ratio > 1:
            gain = now.rate / max(before.rate, 1e-9) - 1
            return now.waits > WAITS and gain < max(WORTH * (ratio - 1), self._noise)
        makes_less = now.rate < before.rate * (1 - self._noise)
        return now.waits > WAITS and makes_less and now.waits > before.waits

    def _look_for_shift(self, window: Window) -> None:
        """Forget what was learnt of another load, and learn how noisy this one is."""
        last = self._seen.get(window.workers)
        is_odd = last is not None and _has_shifted(last, window, SHIFT)
        self._odd = self._odd + 1 if is_odd else 0
        if 0 < self._odd < self._doubt:
            return
        if is_odd:
            self._seen.clear()
            self._patience, self._direction, self._calm = PATIENCE // 2, 0, 0
            self._rest = {1: 0, -1: 0}
            # Where windows differ again and again, changes still come ever more rarely.
            self._odd, self._doubt = 0, min(self._doubt + 1, DOUBT_MAX)
        elif last is not None:
            change = abs(window.rate / max(last.rate, 1e-9) - 1)
            self._noise = max(NOISE, 0.7 * self._noise + 0.3 * min(change, 0.5))
        self._seen[window.workers] = window

    def _more(self, window: Window, sensible: int) -> int:
        """How many would make the trainer wait no more, at most twice as many as there are."""
        now = window.workers
        if now > sensible and not self._rest[-1]:
            return max(sensible, now // 2)  # they seem to be in each other's way
        if self._rest[1]:
            return now
        needed = math.ceil(window.batch_s / max(window.step_s, 1e-9) * SPARE)
        return max(now, min(max(needed, now + 1), 2 * now, sensible))

    def _fewer(self, window: Window) -> int:
        """How many are busy, and some to spare, if that has been fewer for some windows."""
        now = window.workers
        needed = max(1, math.ceil(window.busy_s / window.seconds * SPARE))
        is_too_many = needed < now and window.waits <= IDLE
        self._calm = self._calm + 1 if is_too_many else 0
        return needed if self._calm >= CALM and not self._rest[-1] else now


def _has_shifted(then: Window, now: Window, by: float) -> bool:
    """Returns True if samples or the step take another time than they did."""
    for before, after in zip(then.paces, now.paces, strict=True):
        if before > 0 and after > 0 and not 1 / by <= after / before <= by:
            return True
    return False
