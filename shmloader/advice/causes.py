"""
The causes of a loop's waiting: how each is known, what is said of it, and what cures it.

The waits are played again by the model without each possible cause in turn. The cause is what the
waiting goes away with; what is measured directly, such as copies and waits for pages, comes first.
"""

from dataclasses import replace

import numpy

from shmloader.advice import changes
from shmloader.advice.case import Case
from shmloader.advice.changes import FREE, Advice, cores_of
from shmloader.stats.records import Spill
from shmloader.stats.words import duration, percent, size, times

Found = tuple[str, str, Advice]  # a cause, what is said of it, and what to change

_MOST = 0.5  # of the waiting: what a cause has to explain
_LATE = 0.25  # of the time: how long a thread has to lack a core to be told of cores
_COMPUTES = 0.5  # of a worker's time: who computes less mostly waits for a network or a disk
_THREADS = 8  # a beginning
_FOR_BYTES = (Spill.TOO_FEW_BYTES, Spill.FOR_AN_EARLIER_BATCH)


def judge(case: Case) -> Found:
    """Name the cause, and say what to change."""
    for row in _CAUSES:
        found = row(case)
        if found is not None:
            return found
    return _batches(case)


def _step(case: Case) -> Found | None:
    late = min(case.facts["step_delayed_share"], case.facts["delayed_share"])
    if case.wait_share < 2 * FREE and late > _LATE:
        return _no_core(case)
    if case.wait_share < FREE:
        return "step", f". {_made(case)}. Faster data would change nothing", ({}, [])
    return None


def _no_core(case: Case, it: str = "It finds", of: str = "step_delayed_share") -> Found:
    words = (
        f". {it} no free core for {percent(case.facts[of])} of the time: "
        f"{times(case.setting.workers, 'worker')} and the training process share "
        f"{cores_of(case)}. {_made(case)}"
    )
    return "cpu", words, changes.other_workers(case)


def _few_bytes(case: Case) -> Found | None:
    blocked_s, most = case.facts["blocked_s"], _most_spills(case)
    if blocked_s <= (0.05 if most in _FOR_BYTES else 0.2) * float(case.making.mean()):
        return None
    words = (
        f". ring_bytes is {size(case.setting.ring_bytes)}, too small for the batches in flight: a "
        f"worker waits {duration(blocked_s)} per batch for pages"
    )
    if most in _FOR_BYTES:
        spilled = percent(case.facts["spilled_share"])
        words += f", and {spilled} of the batches were copied out to make room"
    return "memory", words, changes.more_bytes(case, "lower prefetch_factor or batch_size")


def _copies(case: Case) -> Found | None:
    spilled, most = case.facts["spilled_share"], _most_spills(case)
    if spilled <= 0.2 or case.facts["parked_share"] >= 0.7 or most is None:
        return None
    words = (
        f", much of it for copies: {percent(spilled)} of the batches were copied out of their "
        f"slots, because {most.why}"
    )
    return "held", words, _less_held(case)


def _next(case: Case) -> Found | None:
    own, copies = 1 - case.facts["parked_share"], case.facts["copy_share"]
    if own <= _MOST:
        return None
    # A trainer that was woken and finds no core is not parked any more, and does not work either.
    late = case.facts["step_delayed_share"]
    if copies <= _MOST and late > max(_LATE, _MOST * own * case.wait_share):
        return _no_core(case)
    words = (
        f", and {percent(own)} of that is its own work in next(): drawing indices, building the "
        "batch" + (", pinning or copying it" if copies > 0 else "")
    )
    line = "time the sampler, which next() runs, and return fewer values in a batch"
    if case.facts["lock_share"] > _MOST:
        line = (
            f"{percent(case.facts['lock_share'])} of the time in next() went to page-locking "
            "slots, each of which is locked once: later epochs wait less"
        )
    elif copies > _MOST:
        line = (
            f"{percent(copies)} of the time in next() goes to copies into pinned memory or to the "
            "device, which the training thread makes or starts: docs/gpu.md compares their costs"
        )
    return "transport", words, ({}, [line])


def _few_slots(case: Case) -> Found | None:
    setting, busy = case.setting, case.facts["busy_share"]
    enough = replace(setting, slots=setting.ahead + 2)
    if setting.slots >= enough.slots or busy > 0.85:
        return None
    if case.play(case.making, enough).wait_share >= (1 - _MOST) * case.base.wait_share:
        return None
    words = (
        f". Workers have no request for {percent(1 - busy)} of the time, with "
        f"{times(setting.workers, 'worker')} and {times(setting.slots, 'slot')}"
    )
    return "held", words, _less_held(case)


def _less_held(case: Case) -> Advice:
    most = _most_spills(case)
    if most in _FOR_BYTES:
        return changes.more_bytes(case, "drop batches sooner")
    if most is Spill.KEPT_BY_WORKER:
        return {}, [most.cure]
    return changes.more_slots(case)


def _slow_worker(case: Case) -> Found | None:
    """Find the worker without whose slowness most of the waiting would be gone."""
    worker, making, parked = case.timeline.worker, case.making, case.timeline.parked
    numbers, counts = numpy.unique(worker, return_counts=True)
    if len(numbers) < 2 or counts.min() < 3:
        return None
    medians = {int(each): float(numpy.median(making[worker == each])) for each in numbers}
    slowest = max(medians, key=lambda each: medians[each])
    others = float(numpy.median([medians[each] for each in medians if each != slowest]))
    if others <= 0 or medians[slowest] < 1.4 * others:
        return None
    as_long = medians[slowest] / others
    cured = numpy.where(worker == slowest, making / as_long, making)
    share = float(parked[worker == slowest].sum() / parked.sum())
    if case.removes(cured) < _MOST and share < 0.8:
        return None
    words = f", mostly for worker {slowest}, which takes {as_long:.1f} times as long for a batch "
    options, lines = changes.more_workers(case, (slowest, as_long))
    lines = ["look at that process: its node, its core, its share of the data", *lines]
    return "worker", f"{words}as the others", (options, lines)


def _few_cores(case: Case) -> Found | None:
    delayed = case.facts["delayed_share"]
    if delayed <= 0.2 or case.removes(case.making * (1 - delayed)) <= _MOST:
        return None
    return _no_core(case, "The workers are ready to run but find", "delayed_share")


def _slow_samples(case: Case) -> Found | None:
    """Find the few samples without which most of the waiting would be gone."""
    timeline, making = case.timeline, case.making
    typical = float(numpy.median(making))
    is_seen = ~numpy.isnan(timeline.longest)
    is_bad = making > 2 * typical
    if is_seen.all():
        # The batch is long because of one sample, not because all are.
        is_bad &= timeline.longest > 0.5 * (making - typical)
    share = float(is_bad.mean())
    if not 0 < share <= 0.3 or case.removes(numpy.where(is_bad, typical, making)) < _MOST:
        return None
    worst = numpy.argsort(making)[::-1][: min(3, int(is_bad.sum()))]
    indices = [int(timeline.longest_index[each]) for each in worst]
    words = f"{percent(share)} of the batches, which take {duration(float(making[worst[0]]))}"
    if is_seen.all() and min(indices) >= 0:
        case.facts["samples"] = indices
        longest = [duration(float(timeline.longest[each])) for each in worst]
        said = ", ".join(f"{index} ({took})" for index, took in zip(indices, longest, strict=True))
        words = f"single slow samples, such as dataset index {said}"
    return "sample", f", mostly for {words}. {_made(case)}", changes.more_ahead(case)


def _batches(case: Case) -> Found:
    facts, workers = case.facts, case.setting.workers
    name = "collating" if facts["collating_s"] > facts["fetching_s"] else "fetching"
    share = "1 worker makes all batches" if workers == 1 else f"{workers} workers share the batches"
    options, lines = changes.more_workers(case)
    computes = facts["worker_cpu_share"]
    waits = 0 < computes + facts["delayed_share"] < _COMPUTES
    if name == "fetching" and waits and case.setting.may_have_threads:
        lines = [
            *lines,
            f"fetching mostly waits: workers compute for {percent(computes)} of the time they "
            f"fetch. If the dataset is thread-safe, fetch_threads={_THREADS} would fetch more with "
            "fewer workers; shmloader.tune() finds the best number",
        ]
    return name, f". {_made(case)}; {share}", (options, lines)


# The first one that fits is named, otherwise what all batches need.
_CAUSES = (_step, _few_bytes, _copies, _next, _few_slots, _slow_worker, _few_cores, _slow_samples)


def _made(case: Case) -> str:
    fetching, collating, use = (
        duration(case.facts[name]) for name in ("fetching_s", "collating_s", "step_s")
    )
    return f"A batch takes {fetching} to fetch, {collating} to collate and {use} to use"


def _most_spills(case: Case) -> Spill | None:
    """The reason for which most batches were copied out of their slots."""
    reasons = case.epoch.spills
    return Spill[max(reasons, key=reasons.__getitem__).upper()] if reasons else None
