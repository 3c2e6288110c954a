"""One epoch of a loop before it is judged: its numbers, and its waits as the model plays them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from shmloader.metrics import model
from shmloader.metrics.model import Played
from shmloader.metrics.record import Epoch
from shmloader.metrics.timeline import Column, Timeline

_PLAYED = 600  # batches, for each candidate
_UNSTEADY = 0.02  # of the time: waits for wake-ups, for which no batch need have been longer


@dataclass(frozen=True)
class Setting:
    """
    What the loop was run with.

    Attributes:
        workers: Number of workers.
        prefetch_factor: Batches ordered ahead for each.
        in_order: True if batches are returned in the sampler's order.
        assignment: Which worker gets the next request: "cycle" or "dynamic".
        may_be_dynamic: True if the dataset and the other options let assignment be "dynamic".
        may_have_threads: True if workers have no fetching threads, and those would let them.
        is_nice: True if the workers are nicer than the trainer.
        slots: How many there are now.
        chosen_slots: What the user set; None: the loader chose.
        ring_bytes: The ceiling in bytes for what slots keep.
        cores: How many the process may use; a fraction is a share of time.
        ranks: How many processes of the training share the machine, which have as many each.
        persistent: True if workers live on between epochs.
        spare: Slots of them that the user may hold; the others are the workers'.
        most_bytes: What ring_bytes may be at most, for the memory that there is.
    """

    workers: int
    prefetch_factor: int
    in_order: bool
    assignment: str
    may_be_dynamic: bool
    may_have_threads: bool
    is_nice: bool
    slots: int
    chosen_slots: int | None
    ring_bytes: int
    cores: float
    persistent: bool
    spare: int
    most_bytes: int
    ranks: int = 1


class Case:
    """
    An epoch, without the start of its workers.

    Attributes:
        epoch, timeline, setting: As they were given.
        making: Seconds that a worker had each batch in hand.
        use: Seconds that the step had each batch; for the last one, which is not known, their mean.
        step: Seconds that the trainer was busy with each, its own work in next() included.
        wait_share: The part of the time that was spent in next().
        base: The loop as the model plays it.
        excess: How many times longer batches would have to take for the model to wait as long.
        facts: Numbers for the report.
    """

    def __init__(self, epoch: Epoch, timeline: Timeline, setting: Setting) -> None:
        self.epoch = epoch
        self.timeline = timeline
        self.setting = setting
        self.making = timeline.making + timeline.blocked
        self.use = timeline.step.copy()
        if len(timeline) > 1 and self.use[-1] == 0:
            self.use[-1] = self.use[:-1].mean()
        self.step = self.use + (timeline.next - timeline.parked)
        total_s = float(timeline.next.sum() + self.use.sum())
        self.wait_share = float(timeline.next.sum()) / total_s if total_s > 0 else 0.0
        self.base = self.play(self.making)
        self.facts: dict[str, Any] = self._find_facts(total_s)
        self.excess = self._calibrate()

    # The model

    def play(
        self,
        making: Column,
        setting: Setting | None = None,
        step: Column | None = None,
        paces: Sequence[float] | None = None,
    ) -> Played:
        """
        Play the loop with other times of a batch, other options, other steps or slower workers.

        What was ordered at its start is left out: it was made while nothing was used, and the more
        is ahead, the longer the loop would live on that.
        """
        setting = setting or self.setting
        ahead = setting.workers * setting.prefetch_factor
        played = model.play(
            making.tolist(),
            (self.step if step is None else step).tolist(),
            setting.workers,
            setting.prefetch_factor,
            in_order=setting.in_order,
            assignment=setting.assignment,
            paces=paces,
            slots=setting.slots,
            batches=ahead + max(len(making), self.played_with(setting)),
        )
        return played.after(ahead)

    @staticmethod
    def played_with(setting: Setting) -> int:
        """How many batches are played at least behind the start, some for each worker."""
        return min(_PLAYED, 40 * setting.workers)

    def removes(self, making: Column) -> float:
        """The part of the modelled waiting that is gone with these times instead."""
        before = sum(self.base.waits_s) / len(self.base.waits_s)
        played = self.play(numpy.maximum(making, 0.0))
        after = sum(played.waits_s) / len(played.waits_s)
        return 1 - after / before if before > 0 else 0.0

    def _calibrate(self) -> float:
        """
        How many times longer batches would have to take, for the model to wait as the loop did.

        What the model does not know is in it: wake-ups, and other programs on the same cores.
        """
        low, high = 1.0, 2.0
        # The trainer's own work in next() is a part of the model's step.
        parked_share = self.wait_share * self.facts["parked_share"] - _UNSTEADY
        if self.base.wait_share >= parked_share:
            return low
        for _ in range(8):
            middle = (low + high) / 2
            is_low = self.play(self.making * middle).wait_share < parked_share
            low, high = (middle, high) if is_low else (low, middle)
        return low

    # What is held

    @property
    def copying(self) -> Column:
        """Seconds of next() that went into copying each batch out of its slot."""
        timeline = self.timeline
        own, is_copied = timeline.next - timeline.parked, timeline.spilled
        usual = 0.0 if is_copied.all() else float(numpy.median(own[~is_copied]))
        copying: Column = numpy.where(is_copied, numpy.maximum(own - usual, 0.0), 0.0)
        return copying

    @property
    def holds(self) -> float | None:
        """
        How many batches the user holds at once, copies included; None if no slot was to be had.

        The copies are taken to be held for as long as the batches that kept their slots.
        """
        stays = ~self.timeline.spilled
        if not stays.any():
            return None
        return float(self._held()[stays].mean()) * len(stays) / self._span_s()

    # The facts

    def _find_facts(self, total_s: float) -> dict[str, Any]:
        epoch, timeline, setting = self.epoch, self.timeline, self.setting
        busy_s = sum(worker.fetching_s + worker.collating_s for worker in epoch.workers)
        cpu_s = sum(worker.cpu_s for worker in epoch.workers)
        delayed_s = self._delayed_s()
        waiting_s = float(timeline.next.sum())
        span_s = float(timeline.returned[-1] - timeline.asked[0])
        return {
            "epoch": epoch.number,
            "batches": len(timeline),
            "batches_per_s": len(timeline) / total_s if total_s > 0 else 0.0,
            "wait_share": self.wait_share,
            "parked_share": float(timeline.parked.sum()) / waiting_s if waiting_s > 0 else 0.0,
            "step_s": float(self.use.mean()),
            "next_s": float(timeline.next.mean()),
            "fetching_s": float(timeline.fetching.mean()),
            "collating_s": float(timeline.collating.mean()),
            "blocked_s": float(timeline.blocked.mean()),
            "busy_share": min(1.0, float(self.making.sum()) / (setting.workers * span_s)),
            "held_batches": self._held_at_once(),
            "spilled_share": float(timeline.spilled.mean()),
            "workers": setting.workers,
            "prefetch_factor": setting.prefetch_factor,
            "slots": setting.slots,
            "cores": setting.cores,
            "worker_cpu_share": min(1.0, cpu_s / busy_s) if busy_s > 0 else 0.0,
            "delayed_share": min(1.0, delayed_s / busy_s) if busy_s > 0 else 0.0,
            "cores_used": (cpu_s + epoch.trainer_cpu_s) / epoch.wall_s if epoch.wall_s > 0 else 0.0,
            "runnable": self._runnable(cpu_s + delayed_s),
            "trainer_cores": epoch.trainer_cpu_s / epoch.wall_s if epoch.wall_s > 0 else 0.0,
            "step_delayed_share": self._step_delayed_share(),
            "first_s": epoch.first_s,
            "wall_s": epoch.wall_s,
        }

    def _delayed_s(self) -> float:
        """
        How long all workers found no core, as far as it was not while they started.

        The kernel counts both in one, and a start of many processes at once is full of it; of a
        short epoch it would make one that lacks cores.
        """
        epoch = self.epoch
        delayed_s = sum(worker.delayed_s for worker in epoch.workers)
        if self.setting.persistent or epoch.first_s is None:
            return delayed_s
        return max(0.0, delayed_s - len(epoch.workers) * epoch.first_s)

    def _runnable(self, workers_s: float) -> float:
        """How many threads ran, or wanted a core, on average."""
        epoch = self.epoch
        wanted_s = workers_s + epoch.trainer_cpu_s + epoch.trainer_delayed_s
        return wanted_s / epoch.wall_s if epoch.wall_s > 0 else 0.0

    def _step_delayed_share(self) -> float:
        """The part of the epoch that the step's thread was ready to run and found no core."""
        epoch = self.epoch
        return min(1.0, epoch.trainer_delayed_s / epoch.wall_s) if epoch.wall_s > 0 else 0.0

    def _held_at_once(self) -> float:
        """How many batches lay in their slots in the user's hands, on average over time."""
        stays = ~self.timeline.spilled
        seen = float(self._held()[stays].sum()) / self._span_s()
        # Whenever one was copied for want of a slot, earlier ones, perhaps unseen, lay in all.
        short = self.epoch.spills.get("too_few_slots", 0) / max(sum(self.epoch.spills.values()), 1)
        return max(seen, self.setting.spare * short * float(1 - stays.mean()))

    def _held(self) -> Column:
        timeline = self.timeline
        so_far = timeline.returned[-1] - timeline.returned
        return numpy.where(numpy.isnan(timeline.held), so_far, timeline.held)

    def _span_s(self) -> float:
        return max(float(self.timeline.returned[-1] - self.timeline.returned[0]), 1e-9)
