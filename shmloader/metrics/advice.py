"""What to change about a cause: the options to set, and a line for people."""

from dataclasses import replace
from typing import Any

import numpy

from shmloader.metrics.case import Case
from shmloader.metrics.causes import FREE, most_spills, slow_worker
from shmloader.metrics.tuner import DEPTHS, NEAR, SLOTS_TO_HOLD, Prediction, Tuner, counts_from
from shmloader.metrics.words import argument, cores, duration, percent, size, times

Advice = tuple[dict[str, Any], list[str]]

_KEPT_MOST = 256  # batches: who keeps more of them wants a list of results
_COMPUTES = 0.5  # of a worker's time: who computes less mostly waits for a network or a disk
_NO_CORE = 0.25  # of the step's time: what workers that give way would give back


def advice_for(case: Case, cause: str) -> Advice:
    """Returns the options to set, by name, and what to say of them."""
    if cause == "fetching" and _samples_wait(case):
        return _more_at_once(case)
    if cause in ("fetching", "collating", "worker"):
        return _more_workers(case, cause)
    if cause == "cpu":
        return _other_workers(case)
    if cause == "sample":
        return _more_ahead(case)
    if cause == "held":
        return _more_slots(case)
    if cause == "memory":
        return _more_bytes(case, "lower prefetch_factor or batch_size")
    if cause == "transport":
        line = "time the sampler, and pin_memory if it is used: next() runs them in the trainer"
        return {}, [line]
    return {}, []


def _samples_wait(case: Case) -> bool:
    """Returns True if threads are to be had, and samples neither compute nor wait for a core."""
    busy = case.facts["worker_cpu_share"] + case.facts["delayed_share"]
    return case.setting.may_have_threads and 0 < busy < _COMPUTES


def _more_at_once(case: Case) -> Advice:
    """Fetch more samples at once: by more workers, or by threads where the dataset is safe."""
    advice, lines = _more_workers(case, "fetching")
    computes = percent(case.facts["worker_cpu_share"])
    threads = (
        f"samples mostly wait: workers compute {computes} of the time they fetch, so "
        'fetch_threads="auto" would do more with fewer of them, if the dataset is safe for '
        "threads: see shmloader doctor --threads"
    )
    return advice, [*lines, threads]


def _more_workers(case: Case, cause: str) -> Advice:
    setting = case.setting
    slow = slow_worker(case) if cause == "worker" else None
    tuner = Tuner(case, slow=slow)
    counts = counts_from(setting.workers)
    # Unequal workers are what the turns are wrong for; for unequal batches more workers will do.
    assignments = tuner.assignments if slow is not None else None
    depths = (setting.prefetch_factor,)
    found = tuner.choose(tuner.settings(counts, depths, assignments))
    lines = []
    if cause == "worker":
        lines.append("look at that process: its node, its core, its share of the data")
    advice = _changes(case, tuner, found)
    if not advice:
        if found.is_bound_by_cores:
            return {}, [*lines, *_limits_of(case, tuner)]
        if not tuner.fits(replace(setting, workers=setting.workers + 1)):
            return {}, [*lines, _no_memory(tuner)]
        return {}, [*lines, "no other number of workers would help much"]
    now = f"now {times(setting.workers, 'worker')}, on {cores(setting.cores, setting.ranks)}"
    line = f"{_said(case, advice, found)} ({now})"
    if found.wait_share > FREE and found.is_bound_by_cores:
        line += f"; no more can be had from {cores(tuner.cores, setting.ranks)}"
    return advice, [*lines, line, *_of_draws(advice)]


def _other_workers(case: Case) -> Advice:
    """Set another number of workers if that is faster; else the cores are what is missing."""
    setting = case.setting
    tuner = Tuner(case, own_delays_only=False)
    found = tuner.choose(tuner.settings(counts_from(1), (setting.prefetch_factor,)))
    advice = _changes(case, tuner, found)
    if advice and found.batch_s * case.facts["batches_per_s"] * NEAR < 1:
        return advice, [_said(case, advice, found), *_to_give_way(case)]
    lines = _limits_of(case, tuner)
    # Beside other programs each worker more is a larger part of the cores.
    if tuner.cores == setting.cores and found.setting.workers < setting.workers:
        lines.append(f"num_workers={found.setting.workers} would do about as well")
    return {}, [*lines, *_to_give_way(case)]


def _to_give_way(case: Case) -> list[str]:
    if case.setting.is_nice or case.facts["step_delayed_share"] < _NO_CORE:
        return []
    return ["or nice=19: the workers give way to the training step, which lacks a core"]


def _limits_of(case: Case, tuner: Tuner) -> list[str]:
    lines = [
        f"limited by {cores(tuner.cores, case.setting.ranks)}: a batch costs a worker "
        f"{duration(tuner.worker_cpu_s)} of processor time, and the trainer "
        f"{duration(tuner.trainer_cpu_s)}. Make a sample cheaper, cache it, or use more cores"
    ]
    if tuner.cores < case.setting.cores:
        rest = f"which use the rest of {cores(case.setting.cores, case.setting.ranks)}"
        lines.append(f"look at the other programs, {rest}")
    return lines


def _no_memory(tuner: Tuner) -> str:
    return (
        f"there is no memory for more batches of {size(tuner.batch_bytes)} on their way: make them "
        "smaller"
    )


def _more_ahead(case: Case) -> Advice:
    setting = case.setting
    tuner = Tuner(case)
    depths = [depth for depth in DEPTHS if depth >= setting.prefetch_factor]
    depths = depths or [setting.prefetch_factor]
    choices = depths, tuner.assignments
    found = tuner.choose(tuner.settings([setting.workers], *choices))
    if found.wait_share > 2 * FREE:
        found = tuner.choose(tuner.settings(counts_from(setting.workers), *choices))
    advice = _changes(case, tuner, found)
    lines = [_said(case, advice, found), *_of_draws(advice)] if advice else []
    if setting.in_order:
        free = tuner.predict(replace(setting, in_order=False))
        if free.wait_share < 0.5 * case.wait_share:
            lines.append(
                "or in_order=False, if their order does not matter: it would wait about "
                f"{percent(free.wait_share)} of the time"
            )
    return advice, lines or ["repair or drop those samples"]


def _changes(case: Case, tuner: Tuner, found: Prediction) -> dict[str, Any]:
    """List the options that are others than now, with the room for what is ahead then."""
    setting = case.setting
    advice: dict[str, Any] = {}
    if found.setting.assignment != setting.assignment:
        advice["assignment"] = found.setting.assignment
    if found.setting.prefetch_factor != setting.prefetch_factor:
        advice["prefetch_factor"] = found.setting.prefetch_factor
    if found.setting.workers != setting.workers:
        advice["num_workers"] = found.setting.workers
    now, then = (each.workers * each.prefetch_factor for each in (setting, found.setting))
    if then <= now:
        return advice
    if setting.chosen_slots is not None and setting.chosen_slots < found.setting.slots:
        advice["slots"] = found.setting.slots
    return advice | _bytes_for(case, tuner, found.setting.slots)


def _of_draws(advice: dict[str, Any]) -> list[str]:
    """Say what dynamic assignment costs, if it is advised."""
    if "assignment" not in advice:
        return []
    return [
        "batches and their order stay the same; if samples draw random numbers, pass "
        'seed_by="batch" too, or the draws depend on which worker happens to be free'
    ]


def _bytes_for(case: Case, tuner: Tuner, slots: int) -> dict[str, Any]:
    """List ring_bytes, if it is too small for so many batches and may be more."""
    needed = min(tuner.bytes_for(slots), case.setting.most_bytes)
    return {"ring_bytes": needed} if needed > case.setting.ring_bytes else {}


def _said(case: Case, advice: dict[str, Any], found: Prediction) -> str:
    share = percent(found.wait_share)
    return (
        f"set {_pairs(advice)}: it would wait about {share} of the time, "
        f"{1 / found.batch_s:.3g} batches/s instead of {case.facts['batches_per_s']:.3g}"
    )


def _pairs(advice: dict[str, Any]) -> str:
    return " and ".join(argument(name, value) for name, value in advice.items())


def _more_slots(case: Case) -> Advice:
    setting, most = case.setting, most_spills(case)
    if most in ("too_few_bytes", "for_an_earlier_batch"):
        return _more_bytes(case, "drop batches sooner")
    if most == "kept_by_worker":
        return {}, ["have the dataset and collate_fn drop or copy what they return"]
    if most == "too_few_slots" and setting.spare > 0 and case.holds is None:
        return _slots_for_all(case)
    held = int(numpy.ceil(max(case.facts["held_batches"], case.holds or 0.0)))
    tuner, advice, found = _workers_with_room(case)
    slots = found.setting.workers * setting.prefetch_factor + max(SLOTS_TO_HOLD, held + 2)
    if most == "for_children":
        # How many are shared with children is not known.
        slots = max(slots, 2 * setting.slots)
    otherwise = {"for_children": "fork before you iterate"}.get(most or "", "drop batches sooner")
    if not tuner.has_memory_for(slots):
        return {}, [f"{otherwise}: there is no memory for {slots} of {size(tuner.batch_bytes)}"]
    advice |= {"slots": slots} | _bytes_for(case, tuner, slots)
    line = _said(case, advice, found)
    return advice, [line if setting.spare == 0 else f"{line}; or {otherwise}"]


def _slots_for_all(case: Case) -> Advice:
    """Make room for all batches of an epoch, where none of those that are held came back."""
    setting, epoch, tuner = case.setting, case.epoch, Tuner(case, has_room=True)
    kept = (
        f"none of the {setting.spare} batches that kept their slots came back: keep parts or "
        "results of batches, not the batches"
    )
    slots = setting.workers * setting.prefetch_factor + (epoch.length or epoch.batches) + 2
    if slots > _KEPT_MOST or not tuner.has_memory_for(slots):
        return {}, [kept]
    advice = {"slots": slots} | _bytes_for(case, tuner, slots)
    found = tuner.predict(replace(setting, slots=slots))
    return advice, [
        kept,
        f"or {_said(case, advice, found)}, all of an epoch's batches in their slots",
    ]


def _workers_with_room(case: Case) -> tuple[Tuner, dict[str, Any], Prediction]:
    """Find how many workers it takes when there is room: they may be too few even then."""
    setting, tuner = case.setting, Tuner(case, has_room=True)
    found = tuner.choose(tuner.settings(counts_from(setting.workers), (setting.prefetch_factor,)))
    advice = {}
    if found.setting.workers != setting.workers:
        advice["num_workers"] = found.setting.workers
    return tuner, advice, found


def _more_bytes(case: Case, otherwise: str) -> Advice:
    setting = case.setting
    tuner, advice, found = _workers_with_room(case)
    if setting.chosen_slots is not None and setting.chosen_slots < found.setting.slots:
        advice["slots"] = found.setting.slots
    needed = max(tuner.bytes_for(found.setting.slots), 2 * setting.ring_bytes)
    needed = min(needed, setting.most_bytes)
    if needed <= setting.ring_bytes:
        return {}, [f"{otherwise}: ring_bytes is all that the machine has to give"]
    advice["ring_bytes"] = needed
    return advice, [f"{_said(case, advice, found)}; or {otherwise}"]
