"""
Which options a loop needs, searched in the model.

What a loop would do with other options is predicted from two times of a batch: how long a worker
has it in hand, played again by the model for other numbers of workers and depths; and how much of
a core it costs workers and trainer, which bounds all of them together. The smallest setting that
comes near the best is taken, among those for whose batches there is memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shmloader.advice.case import Case
from shmloader.stats.setting import CYCLE, DYNAMIC, Setting
from shmloader.stats.timeline import Column

NEAR = 1.05  # times the best time: what is good enough if it is cheaper
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_NOTHING = 0.001  # of the time
_WORKERS_MAX = 64
_COMPUTES = 0.5  # of a worker's time: who wants a core for less mostly waits for something else


@dataclass(frozen=True)
class Prediction:
    """A loop with other options."""

    setting: Setting
    wait_share: float  # of the time, in next()
    batch_s: float  # the step included
    is_bound_by_cores: bool  # more workers would only wait for cores
    is_least: bool  # no setting could be faster: it waits for nothing, or for cores alone


class Tuner:
    """Predicts one loop with other options, and chooses among them."""

    def __init__(
        self, case: Case, *, has_room: bool = False, slow: tuple[int, float] | None = None
    ) -> None:
        """
        Tune an epoch's loop, whose workers wait for no pages nor slots any more if it has_room.

        One worker may be slow, as (worker, times), and will be among any number of workers.
        """
        facts, now = case.facts, case.setting
        self._case, self._slow = case, slow
        copying = case.copying if has_room else 0.0 * case.copying
        self._step = case.step - copying
        self._use_s = float(case.use.mean())
        # What the model does not know of was mostly the shortage, where there was one.
        making = case.timeline.making if has_room else case.making * case.excess
        # What the loop's own processes delay is bounded by the cores; what others do will go on.
        self._making: Column = making * (1 - facts["delayed_share"] * facts["own_lack_share"])
        if slow is not None:
            # Its own pace is played, whichever batches it gets then.
            self._making = self._making[case.timeline.worker != slow[0]]
        self.cores = self._cores()
        # Processor time that a batch costs, and its shortest time if cores were all that limits it.
        self.worker_cpu_s = float(case.timeline.making.mean()) * facts["worker_cpu_share"]
        now_s = 1 / max(facts["batches_per_s"], 1e-9)
        self.trainer_cpu_s = max(0.0, facts["trainer_cores"] * now_s - float(copying.mean()))
        # They have done as much already.
        self.cores_bound_s = min((self.worker_cpu_s + self.trainer_cpu_s) / self.cores, now_s)
        self.batch_bytes = int(case.timeline.bytes.max())  # of the largest
        self.held = math.ceil(facts["held_batches"])  # at once
        both = now.may_be_dynamic and now.assignment == CYCLE
        self.assignments = (CYCLE, DYNAMIC) if both else (now.assignment,)

    def _cores(self) -> float:
        """Beside other programs no more cores than now, or the part of the time that one is had."""
        facts, cores = self._case.facts, float(self._case.setting.cores)
        used: float = facts["cores_used"]
        if not facts["cores_of_others"]:
            return cores
        if facts["worker_cpu_share"] + facts["delayed_share"] >= _COMPUTES:
            return used
        runnable: float = facts["runnable"]
        return max(used, cores * used / runnable)

    def predict(self, setting: Setting) -> Prediction:
        """Predict the loop with other options."""
        paces = None if self._slow is None else [self._slow[1], *[1.0] * (setting.workers - 1)]
        played = self._case.play(self._making, setting, self._step, paces)
        bound_s = self.cores_bound_s
        batch_s = max(played.total_s / len(played.waits_s), bound_s, 1e-9)
        share = max(0.0, 1 - self._use_s / batch_s)
        is_least = played.wait_share < _NOTHING or batch_s <= bound_s
        return Prediction(setting, share, batch_s, bound_s > 0.8 * batch_s, is_least)

    def as_it_is(self) -> Prediction:
        """Predict the loop with its own options, slots and bytes, as one to compare with."""
        return Tuner(self._case, slow=self._slow).predict(self._case.setting)

    def choose(
        self,
        workers: Sequence[int],
        depths: Sequence[int] | None = None,
        assignments: Sequence[str] | None = None,
    ) -> Prediction:
        """
        Take the first of the settings that is about as fast as the best; the cheapest come first.

        An assignment costs less than depth, and depth less than a worker. By default the loop's own
        are tried. Settings for whose batches there is no memory are left out.
        """
        now, tried = self._case.setting, []
        for setting in (
            self.setting(count, depth, each)
            for count in workers
            if count <= (self._case.epoch.length or count)  # one without a batch is of no use
            for depth in depths or (now.prefetch_factor,)
            for each in assignments or (now.assignment,)
        ):
            if self.fits(setting.ahead):
                tried.append(self.predict(setting))
                if tried[-1].is_least:
                    break  # what comes after it costs more and is no faster
        tried = tried or [self.predict(now)]
        best_s = min(each.batch_s for each in tried)
        return next(each for each in tried if each.batch_s <= best_s * NEAR)

    def setting(self, workers: int, depth: int, assignment: str) -> Setting:
        """Make the setting of so many workers and depth, with the slots that it needs."""
        now = self._case.setting
        slots = self.slots_for(workers * depth, self.held)
        return replace(
            now, workers=workers, prefetch_factor=depth, assignment=assignment, slots=slots
        )

    def slots_for(self, ahead: int, held: int) -> int:
        """Count the slots for so many batches ahead and so many held: two are on their way."""
        return ahead + max(self._case.setting.extra_slots, held + 2)

    def fits(self, ahead: int) -> bool:
        """Returns True if there is memory for so many batches ahead, or they are no more now."""
        now = self._case.setting
        needed = (ahead + self.held + 1) * self.batch_bytes
        return ahead <= now.ahead or needed <= max(now.most_bytes, now.ring_bytes)

    def bytes_for(self, slots: int) -> int:
        """Count the bytes for so many batches, and a quarter because they are not all in use."""
        return slots * self.batch_bytes * 5 // 4


def counts_from(workers: int) -> list[int]:
    """List the numbers of workers that are worth trying, from one on."""
    return [*range(workers, 17), *range(max(18, workers + workers % 2), _WORKERS_MAX + 1, 2)]
