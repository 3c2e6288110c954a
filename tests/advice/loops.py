"""Loops that were not run: the record and the timeline that an epoch of given times would have."""

import random

import numpy

from shmloader.advice.model import play
from shmloader.advice.report import report_on
from shmloader.memory import policy
from shmloader.stats import Epoch, Times, WorkerStats
from shmloader.stats.setting import Setting
from shmloader.stats.timeline import Timeline

BATCHES = 200
MIB = 1 << 20


def times_of(durations_s):
    """Make the record of durations."""
    counts = {}
    for duration in durations_s:
        counts[int(duration * 1e9)] = counts.get(int(duration * 1e9), 0) + 1
    longest_ns = max(durations_s) * 1e9
    return Times.of(sum(durations_s) * 1e9, longest_ns, tuple(sorted(counts.items())))


def column(value, count=BATCHES):
    """Make a column of one value, or of a function of the batch's number, or as it is."""
    if callable(value):
        value = [value(number) for number in range(count)]
    return numpy.broadcast_to(numpy.asarray(value, dtype=float), count).copy()


def loop(
    fetching=0.01,
    collating=0.001,
    step=0.005,
    workers=2,
    *,
    own=0.0,
    blocked=0.0,
    spilled=0.0,
    spills=None,
    held=0.0,
    longest=None,
    indices=None,
    cpu=0.0,
    delayed=0.0,
    trainer_cpu=0.0,
    late=0.0,
    prefetch_factor=2,
    in_order=True,
    assignment="cycle",
    may_be_dynamic=True,
    may_have_threads=False,
    slots=None,
    cores=8.0,
    first_s=0.1,
    persistent=True,
    ring_bytes=256 * MIB,
    size=1000,
    most_bytes=16 << 30,
    ranks=1,
    start="fork",
    length=BATCHES,
    number=2,
):
    """
    Play a loop, and describe it as the log would have it.

    Args:
        fetching, collating, step, own, blocked: Seconds of each batch; own is the trainer's work in
            next(). A number, or a function of the batch's number.
        spilled: The part of the batches that are copied out.
        held: Seconds that a batch is held behind its step.
        size: Bytes of a batch.
        most_bytes: What ring_bytes may be at most.
        length: Batches of the epoch, if it is known.
        longest, indices: Each batch's longest sample, and its index.
        cpu, delayed: The parts of a worker's time that it ran, and that it wanted a core.
        trainer_cpu, late: The same for the trainer, as parts of the epoch.

    Returns:
        (epoch, timeline, setting), as `report_on` takes them.
    """
    fetching, collating, blocked = column(fetching), column(collating), column(blocked)
    step, own = column(step), column(own)
    making = fetching + collating + blocked
    chosen = workers * prefetch_factor + 6 if slots is None else slots
    played = play(
        making.tolist(),
        (step + own).tolist(),
        workers,
        prefetch_factor,
        in_order=in_order,
        assignment=assignment,
        slots=chosen,
    )
    waits = numpy.asarray(played.waits_s)
    returned = numpy.cumsum(waits + own) + numpy.concatenate([[0.0], numpy.cumsum(step)[:-1]])
    asked = returned - waits - own
    spilled_here = numpy.arange(BATCHES) % 100 < 100 * spilled
    busy = float((fetching + collating).sum())
    timeline = Timeline(
        worker=numpy.asarray(played.workers),
        fetching=fetching,
        collating=collating,
        blocked=blocked,
        next=waits + own,
        parked=waits,
        step=step,
        held=step + held,
        asked=asked,
        returned=returned,
        spilled=spilled_here,
        longest=column(numpy.nan if longest is None else longest),
        longest_index=column(-1 if indices is None else indices).astype(int),
        bytes=numpy.full(BATCHES, size),
    )
    each = WorkerStats(
        fetching_s=float(fetching.sum()) / workers,
        collating_s=float(collating.sum()) / workers,
        blocked_s=float(blocked.sum()) / workers,
        batches=BATCHES // workers,
        cpu_s=cpu * busy / workers,
        delayed_s=delayed * busy / workers,
    )
    epoch = Epoch(
        number=number,
        is_over=True,
        batches=BATCHES,
        length=length,
        bytes=BATCHES * 1000,
        wall_s=float(returned[-1]) + float(step[-1]) + first_s,
        first_s=first_s,
        wait_s=float(waits.sum()),
        next=times_of((waits + own).tolist()),
        step=times_of(step.tolist()),
        workers=(each,) * workers,
        spills=spills or {},
        restarts=0,
        trainer_cpu_s=trainer_cpu * float(returned[-1]),
        trainer_delayed_s=late * float(returned[-1]),
    )
    setting = Setting(
        workers=workers,
        prefetch_factor=prefetch_factor,
        in_order=in_order,
        assignment=assignment,
        may_be_dynamic=may_be_dynamic,
        may_have_threads=may_have_threads,
        slots=chosen,
        chosen_slots=slots,
        extra_slots=6,
        ring_bytes=ring_bytes,
        cores=cores,
        persistent=persistent,
        spare=chosen - policy.reserved_slots(workers * prefetch_factor, workers, chosen),
        most_bytes=most_bytes,
        ranks=ranks,
        start=start,
    )
    return epoch, timeline, setting


def report(**about):
    """Judge a loop that was not run."""
    return report_on(*loop(**about))


def one_in_twelve(number):
    return 0.114 if random.Random(1000 + number).random() < 0.08 else 0.016
