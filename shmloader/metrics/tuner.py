"""
Which options a loop needs, searched in the model.

What a loop would do with other options is predicted from two times of a batch: how long a worker
has it in hand, played again by the model for other numbers of workers and depths; and how much of
a core it costs workers and trainer, which bounds all of them together. The smallest setting that
comes near the best is taken, among those for whose batches there is memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shmloader.metrics.case import Case, Setting
from shmloader.metrics.model import CYCLE, DYNAMIC
from shmloader.metrics.timeline import Column

_NOTHING = 0.001  # of the time
NEAR = 1.05  # times the best time: what is good enough if it is cheaper
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_WORKERS_MAX = 64
SLOTS_TO_HOLD = 6  # the default
_USED = 0.8  # of the cores: less, though threads wanted them all the time, is the work of others


@dataclass(frozen=True)
class Prediction:
    """
    A loop with other options.

    Attributes:
        setting: The options.
        wait_share: The part of the time that it would spend in next().
        batch_s: Seconds for each batch, its step included.
        is_bound_by_cores: True if more workers would only wait for cores.
        is_least: True if no setting could be faster: it waits for nothing, or for cores alone.
    """

    setting: Setting
    wait_share: float
    batch_s: float
    is_bound_by_cores: bool
    is_least: bool


class Tuner:
    """Predicts one loop with other options, and chooses among them."""

    def __init__(
        self,
        case: Case,
        own_delays_only: bool = True,
        slow: tuple[int, float] | None = None,
        has_room: bool = False,
    ) -> None:
        """
        Tune an epoch's loop.

        Args:
            own_delays_only: Believe that workers will go on waiting for cores that other programs
                take now, as far as cores are not taken by this loop itself. Otherwise they, and
                the step, will find one.
            slow: (worker, times) if one worker is so many times slower than the others, and will be
                among any number of workers.
            has_room: Believe that there will be slots and bytes enough: no worker will wait for
                pages, and nothing will be copied out of its slot.
        """
        self._case = case
        self._slow = slow
        self._has_room = has_room
        self._making = self._alone(own_delays_only)
        on_time = 1.0 if own_delays_only else 1 - case.facts["step_delayed_share"]
        self._step = on_time * (case.step - case.copying if has_room else case.step)
        self._use_s = on_time * float(case.timeline.step.mean())

    def _alone(self, own_delays_only: bool) -> Column:
        """How long each batch would take a worker that finds a core whenever we leave it one."""
        case = self._case
        ours = min(1.0, case.facts["cores_used"] / case.setting.cores) if own_delays_only else 1.0
        undelayed = 1 - case.facts["delayed_share"] * ours
        # What the model does not know of was mostly the shortage, where there was one.
        found = case.timeline.making if self._has_room else case.making * case.excess
        alone: Column = found * undelayed
        if self._slow is not None:
            # Its own pace is played, whichever batches it gets then.
            alone = alone[case.timeline.worker != self._slow[0]]
        return alone

    @property
    def cores(self) -> float:
        """
        How many cores there are for this loop.

        A loop of which more threads than cores want to run uses all that there are; what is missing
        then is used by other programs.
        """
        cores, used = self._case.setting.cores, float(self._case.facts["cores_used"])
        is_full = self._case.facts["runnable"] > cores + 1
        return used if is_full and 0 < used < _USED * cores else cores

    @property
    def worker_cpu_s(self) -> float:
        """Seconds of processor time that a batch costs a worker."""
        case = self._case
        return float(case.timeline.making.mean()) * float(case.facts["worker_cpu_share"])

    @property
    def trainer_cpu_s(self) -> float:
        """Seconds of processor time that a batch costs the training process."""
        case = self._case
        cpu_s = case.facts["trainer_cores"] / max(case.facts["batches_per_s"], 1e-9)
        if self._has_room:
            cpu_s -= float(case.copying.mean())
        return float(max(cpu_s, 0.0))

    @property
    def cores_bound_s(self) -> float:
        """The shortest possible time of a batch, if cores were all that limits the loop."""
        # They have done as much already.
        now_s = 1 / max(self._case.facts["batches_per_s"], 1e-9)
        return float(min((self.worker_cpu_s + self.trainer_cpu_s) / self.cores, now_s))

    def predict(self, setting: Setting) -> Prediction:
        """Predict the loop with other options."""
        paces = None if self._slow is None else [self._slow[1], *[1.0] * (setting.workers - 1)]
        played = self._case.play(self._making, setting, self._step, paces)
        bound_s = self.cores_bound_s
        batch_s = max(played.total_s / len(played.waits_s), bound_s)
        share = max(0.0, 1 - self._use_s / batch_s) if batch_s > 0 else 0.0
        is_least = played.wait_share < _NOTHING or batch_s <= bound_s
        return Prediction(setting, share, batch_s, bound_s > 0.8 * batch_s, is_least)

    def choose(self, settings: Iterable[Setting]) -> Prediction:
        """
        Take the first setting that is about as fast as the best; the cheapest come first.

        Settings for whose batches there is no memory are left out.
        """
        tried = []
        for setting in filter(self.fits, settings):
            tried.append(self.predict(setting))
            if tried[-1].is_least:
                break  # what comes behind it costs more and is no faster
        tried = tried or [self.predict(self._case.setting)]
        best_s = min(each.batch_s for each in tried)
        return next(each for each in tried if each.batch_s <= best_s * NEAR)

    def settings(
        self,
        workers: Sequence[int],
        depths: Sequence[int],
        assignments: Sequence[str] | None = None,
    ) -> Iterable[Setting]:
        """
        List the settings of so many workers and depths, each with the slots that it needs.

        Assignments are those of the loop, or those that are given: they cost less than depth.
        """
        now = self._case.setting
        for count in workers:
            for depth in depths:
                for each in assignments or (now.assignment,):
                    slots = self.slots_for(count, depth)
                    yield replace(
                        now, workers=count, prefetch_factor=depth, assignment=each, slots=slots
                    )

    @property
    def assignments(self) -> tuple[str, ...]:
        """
        The assignments to try: what the user chose, or both.

        The workers of an iterable-style dataset have shares of it, which no other can fetch.
        """
        now = self._case.setting
        both = now.may_be_dynamic and now.assignment == CYCLE
        return (CYCLE, DYNAMIC) if both else (now.assignment,)

    def fits(self, setting: Setting) -> bool:
        """Returns True if there is memory for what is on its way, or no more is than now."""
        now = self._case.setting
        most_bytes = max(now.most_bytes, now.ring_bytes, self._in_use_bytes(now))
        return self._in_use_bytes(setting) <= most_bytes

    def has_memory_for(self, slots: int) -> bool:
        """Returns True if ring_bytes is enough for so many batches, or may be."""
        now = self._case.setting
        return self.bytes_for(slots) <= max(now.most_bytes, now.ring_bytes)

    def _in_use_bytes(self, setting: Setting) -> int:
        held = round(float(self._case.facts["held_batches"])) + 1
        return (setting.workers * setting.prefetch_factor + held) * self.batch_bytes

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch."""
        return int(self._case.timeline.bytes.max())

    def bytes_for(self, slots: int) -> int:
        """Count the bytes for so many batches, and a quarter because they are not all in use."""
        return slots * self.batch_bytes * 5 // 4

    def slots_for(self, workers: int, prefetch_factor: int) -> int:
        """Count the slots for what is on its way, and for what the loop holds."""
        held = round(float(self._case.facts["held_batches"])) + 2
        return workers * prefetch_factor + max(SLOTS_TO_HOLD, held)


def counts_from(workers: int) -> list[int]:
    """List the numbers of workers that are worth trying, from one on."""
    return [*range(workers, 17), *range(max(18, workers + workers % 2), _WORKERS_MAX + 1, 2)]
