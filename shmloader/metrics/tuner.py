"""
Which options a loop needs, searched in the model.

What a loop would do with other options is predicted from two times of a batch: how long a worker
has it in hand, played again by the model for other numbers of workers and depths; and how much of
a core it costs, which bounds all workers together. The smallest setting that comes near the best
is taken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy

from shmloader.metrics.case import Case, Setting
from shmloader.metrics.timeline import Column

NEAR = 1.05  # times the best time: what is good enough if it is cheaper
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_WORKERS_MAX = 64
_SLOTS_TO_HOLD = 6


@dataclass(frozen=True)
class Prediction:
    """
    A loop with other options.

    Attributes:
        setting: The options.
        wait_share: The part of the time that it would wait.
        batch_s: Seconds for each batch, its step included.
        is_bound_by_cores: True if more workers would only wait for cores.
    """

    setting: Setting
    wait_share: float
    batch_s: float
    is_bound_by_cores: bool


class Tuner:
    """Predicts one loop with other options, and chooses among them."""

    def __init__(
        self, case: Case, own_delays_only: bool = True, slow: tuple[int, float] | None = None
    ) -> None:
        """
        Tune an epoch's loop.

        Args:
            own_delays_only: Believe that workers will go on waiting for cores that other programs
                take now, as far as cores are not taken by this loop itself. Otherwise they, and
                the step, will find one.
            slow: (worker, times) if one worker is so many times slower than the others, and will be
                among any number of workers.
        """
        self._case = case
        self._slow = slow
        self._making = self._alone(own_delays_only)
        self._step = case.step
        if not own_delays_only:
            self._step = case.step * (1 - case.facts["step_delayed_share"])

    def _alone(self, own_delays_only: bool) -> Column:
        """How long each batch would take a worker that finds a core whenever we leave it one."""
        case = self._case
        ours = min(1.0, case.facts["cores_used"] / case.setting.cores) if own_delays_only else 1.0
        alone: Column = case.making * (case.excess * (1 - case.facts["delayed_share"] * ours))
        return alone

    @property
    def cores_bound_s(self) -> float:
        """The shortest possible time of a batch, if cores were all that limits the workers."""
        case = self._case
        cpu_s = float(case.making.mean()) * case.facts["worker_cpu_share"]
        left = max(case.setting.cores - case.facts["trainer_cores"], 0.25 * case.setting.cores)
        return float(cpu_s / left)

    def predict(self, setting: Setting) -> Prediction:
        """Predict the loop with other options."""
        played = self._case.play(self._made_with(setting), setting, self._step)
        batch_s = max(played.total_s / len(played.waits_s), self.cores_bound_s)
        step_s = float(self._step.mean())
        share = max(0.0, 1 - step_s / batch_s) if batch_s > 0 else 0.0
        return Prediction(setting, share, batch_s, self.cores_bound_s > 0.8 * batch_s)

    def _made_with(self, setting: Setting) -> Column:
        """How long each batch would take, if one of these workers is a slow one."""
        if self._slow is None:
            return self._making
        worker, times = self._slow
        count = max(len(self._making), self._case.played_with(setting))
        turns = numpy.arange(count) % setting.workers
        is_slow = self._case.timeline.worker == worker
        others = numpy.resize(self._making[~is_slow], count)
        return numpy.where(turns == 0, others * times, others)

    def choose(self, settings: Iterable[Setting]) -> Prediction:
        """Take the first setting that is about as fast as the best; the cheapest come first."""
        tried = [self.predict(setting) for setting in settings]
        best_s = min(each.batch_s for each in tried)
        return next(each for each in tried if each.batch_s <= best_s * NEAR)

    def settings(self, workers: Sequence[int], depths: Sequence[int]) -> Iterable[Setting]:
        """List the settings of so many workers and depths, each with the slots that it needs."""
        for count in workers:
            for depth in depths:
                slots = self.slots_for(count, depth)
                yield replace(self._case.setting, workers=count, prefetch_factor=depth, slots=slots)

    def slots_for(self, workers: int, prefetch_factor: int) -> int:
        """Count the slots for what is on its way, and for what the loop holds."""
        held = round(float(self._case.facts["held_batches"])) + 2
        return workers * prefetch_factor + max(_SLOTS_TO_HOLD, held)


def counts_from(workers: int) -> list[int]:
    """List the numbers of workers that are worth trying, from one on."""
    return [*range(workers, 17), *range(max(18, workers + workers % 2), _WORKERS_MAX + 1, 2)]
