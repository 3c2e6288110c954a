"""What to change about a cause: the options to set, and lines for people."""

from dataclasses import replace
from typing import Any

from shmloader.advice.case import Case
from shmloader.advice.tuner import DEPTHS, NEAR, Prediction, Tuner, counts_from
from shmloader.stats.words import argument, cores, duration, percent, rate, size, tenths, times

Advice = tuple[dict[str, Any], list[str]]

FREE = 0.05  # a loop that waits less than this part of its time is not limited by its data
OF_DRAWS = (
    'batches and their order stay the same; if samples draw random numbers, pass seed_by="batch" '
    "too, or the random numbers depend on which worker happens to be free"
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
            lines[0] += f"; {cores(tuner.cores, setting.ranks)} cannot deliver more"
        return advice, lines
    if found.is_bound_by_cores:
        return {}, _limits(case, tuner)
    if tuner.fits(setting.ahead + setting.prefetch_factor):
        return {}, ["no other number of workers would help much"]
    return {}, [
        f"there is not enough memory for more batches of {size(tuner.batch_bytes)} in flight: "
        "make batches smaller"
    ]


def other_workers(case: Case) -> Advice:
    """Set another number of workers if that is faster; otherwise the cores are what is missing."""
    setting, tuner = case.setting, Tuner(case)
    found = tuner.choose(counts_from(1))
    advice, lines = _changed(case, tuner, found)
    if advice:
        return advice, lines
    lines = _limits(case, tuner)
    # Beside other programs each worker more is a larger part of the cores.
    if not case.facts["cores_of_others"] and found.setting.workers < setting.workers:
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
            "or in_order=False, if the order of batches does not matter: the loop would wait "
            f"about {percent(free.wait_share)} of the time"
        )
    return advice, lines or ["repair or drop those samples"]


def more_slots(case: Case) -> Advice:
    """Make room for the batches that are held; there may be too few workers even then."""
    setting, tuner = case.setting, Tuner(case, has_room=True)
    less, held = "drop batches sooner", tuner.held
    if case.timeline.spilled.all() and setting.spare > 0:
        kept = f"none of the {setting.spare} batches that are held in slots was dropped"
        less, held = (
            f"retain parts or results of batches only: {kept}",
            case.epoch.length or _ENDLESS,
        )
    if held > _KEPT_MOST:
        return {}, [less]
    found = tuner.choose(counts_from(setting.workers))
    slots = tuner.slots_for(found.setting.ahead, held)
    if not tuner.fits(slots):
        return {}, [
            f"{less}; there is not enough memory for {slots} slots of {size(tuner.batch_bytes)}"
        ]
    advice, lines = _changed(case, tuner, found, slots=slots)
    return advice, _or(lines, None if advice and setting.spare == 0 else less)


def more_bytes(case: Case, otherwise: str) -> Advice:
    """Make room for the bytes of the batches that are on their way or held."""
    setting, tuner = case.setting, Tuner(case, has_room=True)
    if setting.ring_bytes >= setting.most_bytes:
        return {}, [
            f"{otherwise}: ring_bytes is already all the memory that the machine has for it"
        ]
    found = tuner.choose(counts_from(setting.workers))
    advice, lines = _changed(case, tuner, found, ring_bytes=2 * setting.ring_bytes)
    return advice, _or(lines, otherwise)


def _or(lines: list[str], otherwise: str | None) -> list[str]:
    """Put another cure behind the first line, or in its place if there is none."""
    return ["; or ".join([*lines[:1], *([otherwise] if otherwise else [])])]


def _limits(case: Case, tuner: Tuner) -> list[str]:
    """Say that cores are what is missing, and which of the two users of them to make cheaper."""
    is_the_step = tuner.trainer_cpu_s > tuner.worker_cpu_s
    cheaper = "Make the step cheaper" if is_the_step else "Make a sample cheaper, cache it"
    return [
        f"limited by {cores(tuner.cores, case.setting.ranks)}: a batch costs a worker "
        f"{duration(tuner.worker_cpu_s)} of processor time, and the training process "
        f"{duration(tuner.trainer_cpu_s)}. {cheaper}, or use more cores"
    ]


def other_programs(case: Case) -> list[str]:
    """Name the load of other programs, if they take cores that the loop wants."""
    facts = case.facts
    if not facts["cores_of_others"]:
        return []
    used, lacking = facts["cores_used"], facts["runnable"] - facts["cores_used"]
    return [
        f"other programs use the rest of {cores_of(case)}: this loop had {tenths(used)} of them "
        f"while {lacking:.1f} of its processes on average waited for one. End or move the others "
        "first"
    ]


def cores_of(case: Case) -> str:
    """Say how many cores the loop may use."""
    return cores(case.setting.cores, case.setting.ranks)


def _changed(
    case: Case, tuner: Tuner, found: Prediction, *, slots: int = 0, ring_bytes: int = 0
) -> Advice:
    """List the options that are others than now, and the gain; none if that is too little."""
    advice = _differences(case, tuner, found, slots, ring_bytes)
    # By the same model, the loop as it is: whatever that does not know slows both.
    times_as_fast = tuner.as_it_is().batch_s / found.batch_s
    if not advice or times_as_fast < NEAR:
        return {}, []
    pairs = " and ".join(argument(name, value) for name, value in advice.items())
    now_per_s = case.facts["batches_per_s"]
    case.facts["advised_batches_per_s"] = then_per_s = now_per_s * times_as_fast
    lines = [
        f"set {pairs}: the loop would wait about {percent(found.wait_share)} of the time, "
        f"{rate(then_per_s)} batches/s instead of {rate(now_per_s)}"
    ]
    if "assignment" in advice:
        lines.append(OF_DRAWS)
    return advice, lines


def _differences(
    case: Case, tuner: Tuner, found: Prediction, slots: int, ring_bytes: int
) -> dict[str, Any]:
    """List the options that are others than now, with room for what is ahead then, and is held."""
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
    return advice
