"""What to change about a cause: the options to set, and lines for people."""

from dataclasses import replace
from typing import Any

from shmloader.advice.case import Case
from shmloader.advice.tuner import DEPTHS, NEAR, Prediction, Tuner, counts_from
from shmloader.stats.words import argument, cores, duration, percent, rate, size, times

Advice = tuple[dict[str, Any], list[str]]

FREE = 0.05  # a loop that waits less than this part of its time is not limited by its data
OF_DRAWS = (
    "batches and their order stay the same; if samples draw random numbers, pass "
    'seed_by="batch" too, or the draws depend on which worker happens to be free'
)
_KEPT_MOST = 256  # batches: who keeps more of them wants a list of results
_ENDLESS = _KEPT_MOST + 1  # of an epoch whose length is not known


def more_workers(case: Case, slow: tuple[int, float] | None = None) -> Advice:
    """Set so many workers as hide the waiting; one may be so many times slower than the others."""
    setting, tuner = case.setting, Tuner(case, slow=slow)
    # Unequal workers are what the turns are wrong for; for unequal batches more workers will do.
    assignments = tuner.assignments if slow is not None else None
    found = tuner.choose(counts_from(setting.workers), assignments=assignments)
    advice, lines = _changed(case, tuner, found)
    if advice:
        lines[0] += f" (now {times(setting.workers, 'worker')}, on {cores_of(case)})"
        if found.wait_share > FREE and found.is_bound_by_cores:
            lines[0] += f"; no more can be had from {cores(tuner.cores, setting.ranks)}"
        return advice, lines
    if found.is_bound_by_cores:
        return {}, _limits(case, tuner)
    if tuner.fits(setting.ahead + setting.prefetch_factor):
        return {}, ["no other number of workers would help much"]
    return {}, [
        f"there is no memory for more batches of {size(tuner.batch_bytes)} on their way: make them "
        "smaller"
    ]


def other_workers(case: Case) -> Advice:
    """Set another number of workers if that is faster; otherwise the cores are what is missing."""
    setting, tuner = case.setting, Tuner(case, has_cores=True)
    found = tuner.choose(counts_from(1))
    advice, lines = _changed(case, tuner, found)
    if advice and found.batch_s * case.facts["batches_per_s"] * NEAR < 1:
        return advice, lines
    lines = _limits(case, tuner)
    # Beside other programs each worker more is a larger part of the cores.
    if tuner.cores == setting.cores and found.setting.workers < setting.workers:
        lines.append(f"num_workers={found.setting.workers} would do about as well")
    return {}, lines


def more_ahead(case: Case) -> Advice:
    """Have slow samples made while others go on, by assignment or depth."""
    setting, tuner = case.setting, Tuner(case)
    depths = [each for each in DEPTHS if each >= setting.prefetch_factor]
    found = tuner.choose([setting.workers], depths, tuner.assignments)
    if found.wait_share > 2 * FREE:
        found = tuner.choose(counts_from(setting.workers), depths, tuner.assignments)
    advice, lines = _changed(case, tuner, found)
    free = tuner.predict(replace(setting, in_order=False))
    if setting.in_order and free.wait_share < 0.5 * case.wait_share:
        lines.append(
            "or in_order=False, if their order does not matter: it would wait about "
            f"{percent(free.wait_share)} of the time"
        )
    return advice, lines or ["repair or drop those samples"]


def more_slots(case: Case) -> Advice:
    """Make room for the batches that are held; there may be too few workers even then."""
    setting, tuner = case.setting, Tuner(case, has_room=True)
    less, held = "drop batches sooner", tuner.held
    if case.timeline.spilled.all() and setting.spare > 0:
        kept = f"none of the {setting.spare} batches that kept their slots came back"
        less, held = f"keep parts or results of batches: {kept}", case.epoch.length or _ENDLESS
    if held > _KEPT_MOST:
        return {}, [less]
    found = tuner.choose(counts_from(setting.workers))
    slots = tuner.slots_for(found.setting.ahead, held)
    if not tuner.fits(slots):
        return {}, [f"{less}; there is no memory for {slots} of {size(tuner.batch_bytes)}"]
    advice, (line, *_) = _changed(case, tuner, found, slots=slots)
    return advice, [line if setting.spare == 0 else f"{line}; or {less}"]


def more_bytes(case: Case, otherwise: str) -> Advice:
    """Make room for the bytes of the batches that are on their way or held."""
    setting, tuner = case.setting, Tuner(case, has_room=True)
    if setting.ring_bytes >= setting.most_bytes:
        return {}, [f"{otherwise}: ring_bytes is all that the machine has to give"]
    found = tuner.choose(counts_from(setting.workers))
    advice, (line, *_) = _changed(case, tuner, found, ring_bytes=2 * setting.ring_bytes)
    return advice, [f"{line}; or {otherwise}"]


def _limits(case: Case, tuner: Tuner) -> list[str]:
    """Say that cores are what is missing."""
    limits = [
        f"limited by {cores(tuner.cores, case.setting.ranks)}: a batch costs a worker "
        f"{duration(tuner.worker_cpu_s)} of processor time, and the trainer "
        f"{duration(tuner.trainer_cpu_s)}. Make a sample cheaper, cache it, or use more cores"
    ]
    if tuner.cores < case.setting.cores:
        limits.append(f"look at the other programs, which use the rest of {cores_of(case)}")
    return limits


def cores_of(case: Case) -> str:
    """Say how many cores the loop may use."""
    return cores(case.setting.cores, case.setting.ranks)


def _changed(
    case: Case, tuner: Tuner, found: Prediction, *, slots: int = 0, ring_bytes: int = 0
) -> Advice:
    """
    List the options that are others than now, with the room for what is ahead then.

    Args:
        slots: So many are needed, for batches that are held.
        ring_bytes: At least so many are needed.
    """
    now, then = case.setting, found.setting
    options = {
        "assignment": (now.assignment, then.assignment),
        "prefetch_factor": (now.prefetch_factor, then.prefetch_factor),
        "num_workers": (now.workers, then.workers),
    }
    advice: dict[str, Any] = {name: new for name, (old, new) in options.items() if new != old}
    if slots or ring_bytes or then.ahead > now.ahead:
        if slots or (now.chosen_slots is not None and now.chosen_slots < then.slots):
            advice["slots"] = slots or then.slots
        needed = max(ring_bytes, tuner.bytes_for(slots or then.slots))
        if min(needed, now.most_bytes) > now.ring_bytes:
            advice["ring_bytes"] = min(needed, now.most_bytes)
    if not advice:
        return {}, []
    pairs = " and ".join(argument(name, value) for name, value in advice.items())
    lines = [
        f"set {pairs}: it would wait about {percent(found.wait_share)} of the time, "
        f"{rate(1 / found.batch_s)} batches/s instead of {rate(case.facts['batches_per_s'])}"
    ]
    if "assignment" in advice:
        lines.append(OF_DRAWS)
    return advice, lines
