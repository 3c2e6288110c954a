"""One epoch of a loop before it is judged: its numbers, and its waits as the model plays them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy

from shmloader.advice import model
from shmloader.advice.model import Played
from shmloader.stats.records import Epoch
from shmloader.stats.setting import Setting
from shmloader.stats.timeline import Column, Timeline

_PLAYED = 600  # batches, for each candidate
_EXCESSES = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0)
_UNSTEADY = 0.02  # of the time: waits for wake-ups, for which no batch need have been longer
_FELT = 0.05  # of the time, for each process: lacking a core for less is noise
_MUCH = 0.15  # of the time in which processes want a core


class Case:
    """An epoch, without the start of its workers; columns have the seconds of each batch."""

    def __init__(self, epoch: Epoch, timeline: Timeline, setting: Setting) -> None:
        self.epoch = epoch
        self.timeline = timeline
        self.setting = setting
        self.making = timeline.making + timeline.blocked  # in a worker's hands
        self.use = timeline.step.copy()  # in the step's
        if len(timeline) > 1 and self.use[-1] == 0:
            self.use[-1] = self.use[:-1].mean()  # the last one's is not known
        self.own = timeline.next - timeline.parked  # the trainer's own work in next()
        self.step = self.use + self.own
        self.facts = self._facts()  # for the report, with units in their names
        self.wait_share: float = self.facts["wait_share"]
        self.base = self.play(self.making)
        # The trainer's own work in next() is a part of the model's step.
        waits = self.wait_share * self.facts["parked_share"] - _UNSTEADY
        # How many times longer batches would have to take, for the model to wait as long: it does
        # not know wake-ups, and other programs on the same cores.
        plays = (times for times in _EXCESSES if self.play(self.making * times).wait_share >= waits)
        self.excess = next(plays, _EXCESSES[-1])

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
        played = model.play(
            making.tolist(),
            (self.step if step is None else step).tolist(),
            setting.workers,
            setting.prefetch_factor,
            in_order=setting.in_order,
            assignment=setting.assignment,
            paces=paces,
            slots=setting.slots,
            batches=setting.ahead + max(len(making), min(_PLAYED, 40 * setting.workers)),
        )
        return played.after(setting.ahead)

    def removes(self, making: Column) -> float:
        """The part of the modelled waiting that is gone with these times instead."""
        before_s = sum(self.base.waits_s)
        after_s = sum(self.play(numpy.maximum(making, 0.0)).waits_s)
        return 1 - after_s / before_s if before_s > 0 else 0.0

    @property
    def copying(self) -> Column:
        """Seconds of next() that went into copying each batch out of its slot."""
        is_copied = self.timeline.spilled
        usual = 0.0 if is_copied.all() else float(numpy.median(self.own[~is_copied]))
        copying: Column = numpy.where(is_copied, numpy.maximum(self.own - usual, 0.0), 0.0)
        return copying

    def _holds(self) -> float:
        """
        How many batches the user holds at once, copies included.

        By Little's law; the copies are taken to be held as long as the batches in their slots.
        """
        timeline, spills = self.timeline, self.epoch.spills
        # Whenever one was copied for want of a slot, earlier ones lay in all that can be spared.
        short = spills.get("too_few_slots", 0) / max(sum(spills.values()), 1)
        least = self.setting.spare * short * float(timeline.spilled.mean())
        if timeline.spilled.all():
            return least
        so_far = timeline.returned[-1] - timeline.returned
        held = numpy.where(numpy.isnan(timeline.held), so_far, timeline.held)[~timeline.spilled]
        span_s = max(float(timeline.returned[-1] - timeline.returned[0]), 1e-9)
        return max(least, float(held.mean()) * len(timeline) / span_s)

    def _facts(self) -> dict[str, Any]:
        """Say how long each part of a batch takes, and how much of the cores is used and wanted."""
        epoch, timeline, setting = self.epoch, self.timeline, self.setting
        waiting_s, use_s = float(timeline.next.sum()), float(self.use.sum())
        span_s = float(timeline.returned[-1] - timeline.asked[0])
        return {
            "batches_per_s": len(timeline) / max(waiting_s + use_s, 1e-9),
            "wait_share": _part(waiting_s, waiting_s + use_s),
            "parked_share": _part(float(timeline.parked.sum()), waiting_s),
            "held_batches": self._holds(),
            "spilled_share": float(timeline.spilled.mean()),
            "step_s": float(self.use.mean()),
            "fetching_s": float(timeline.fetching.mean()),
            "collating_s": float(timeline.collating.mean()),
            "blocked_s": float(timeline.blocked.mean()),
            "busy_share": _part(float(self.making.sum()), setting.workers * span_s),
            "copy_share": _part(epoch.copy_s, epoch.next.total_s),
            "lock_share": _part(epoch.lock_s, epoch.next.total_s),
            **self._facts_of_cores(),
        }

    def _facts_of_cores(self) -> dict[str, float]:
        epoch = self.epoch
        wall_s = max(epoch.wall_s, 1e-9)
        busy_s = sum(worker.fetching_s + worker.collating_s for worker in epoch.workers)
        cpu_s = sum(worker.cpu_s for worker in epoch.workers)
        delayed_s = sum(worker.delayed_s for worker in epoch.workers)
        started = not self.setting.persistent or epoch.number == 1
        if started and epoch.first_s is not None:
            # The kernel counts the start in, which of many processes at once is full of it.
            delayed_s = max(0.0, delayed_s - len(epoch.workers) * epoch.first_s)
        used = (cpu_s + epoch.trainer_cpu_s) / wall_s
        lacks = epoch.trainer_delayed_s / wall_s, delayed_s / wall_s
        lacking = sum(lacks)
        computing_share = _part(cpu_s, busy_s)
        own = self._own_lack(used, epoch.trainer_cpu_s / wall_s, lacks)
        return {
            "worker_cpu_share": computing_share,
            # Wake-ups between two batches are delayed too: those are not in a batch's time.
            "delayed_share": min(_part(delayed_s, busy_s), 1 - computing_share),
            "cores_used": used,
            "runnable": used + lacking,
            "own_lack_share": _part(own, lacking),
            "cores_of_others": self._cores_of_others(used, lacking, lacking - own),
            "trainer_cores": epoch.trainer_cpu_s / wall_s,
            "step_delayed_share": _part(epoch.trainer_delayed_s, epoch.wall_s),
        }

    def _own_lack(self, used: float, trainer_cores: float, lacks: tuple[float, float]) -> float:
        """
        Say how many of the loop's threads can lack a core, at most, because others of it run.

        They fill all cores for no more than their part of the time; all but so many wait then, and
        each one only for others. The trainer and the workers have lacks of their own.
        """
        workers, cores = self.setting.workers, self.setting.cores
        threads = workers + max(1, math.ceil(trainer_cores))
        beside_trainer = used - min(1.0, trainer_cores)
        beside_worker = used - max(0.0, used - trainer_cores) / workers
        each = min(lacks[0], beside_trainer / cores) + min(
            lacks[1], workers * beside_worker / cores
        )
        return min(each, used / cores * max(0.0, threads - cores))

    def _cores_of_others(self, used: float, lacking: float, foreign: float) -> float:
        """Say how many cores other programs take of those that the loop wants; 0.0 if few."""
        least = max(_MUCH * (used + lacking), _FELT * (self.setting.workers + 1))
        is_counted = used > 0  # by the kernel
        return max(0.0, self.setting.cores - used) if is_counted and foreign > least else 0.0


def _part(some: float, whole: float) -> float:
    return min(1.0, some / whole) if whole > 0 else 0.0
