"""
The cause of a loop's waiting.

The waits are played again by the model without each possible cause in turn. The cause is what the
waiting goes away with; what is measured directly, such as copies and waits for pages, comes first.
"""

from dataclasses import replace

import numpy

from shmloader.metrics.case import Case
from shmloader.metrics.words import cores, duration, percent, size, times

FREE = 0.05  # a loop that waits less than this part of its time is not limited by its data
_MOST = 0.5  # of the waiting: what a cause has to explain


def cause_of(case: Case) -> tuple[str, str]:
    """Name the cause, and say it in a line for people."""
    facts, timeline, setting = case.facts, case.timeline, case.setting
    waits = f"the trainer waits {percent(case.wait_share)} of the time"
    fetching, collating, use = (
        duration(facts[name]) for name in ("fetching_s", "collating_s", "step_s")
    )
    made = f"a batch takes {fetching} to fetch, {collating} to collate and {use} to use"
    if case.wait_share < 2 * FREE and facts["step_delayed_share"] > 0.25 < facts["delayed_share"]:
        return "cpu", (
            f"cpu: {waits}; the training step finds no core for "
            f"{percent(facts['step_delayed_share'])} of the time, beside "
            f"{times(setting.workers, 'worker')} on {cores(setting.cores, setting.ranks)}; {made}"
        )
    if case.wait_share < FREE:
        return "step", f"step: {waits}; {made}. Faster data would change nothing"
    own_s = float((timeline.next - timeline.parked).sum())
    if _is_short_of_bytes(case):
        return "memory", (
            f"memory: {waits}; ring_bytes is {size(setting.ring_bytes)}, too few for the batches "
            f"on their way: a worker waits {duration(facts['blocked_s'])} a batch for pages, and "
            f"{percent(facts['spilled_share'])} of the batches were copied out for room"
        )
    if facts["spilled_share"] > 0.2 and own_s > 0.3 * float(timeline.next.sum()):
        share = percent(facts["spilled_share"])
        return "held", (
            f"held: {waits}, much of it for copies: {share} of the batches were copied out of "
            f"their slots, because {_spill_reason(case)}"
        )
    if own_s > _MOST * float(timeline.next.sum()):
        share = percent(own_s / float(timeline.next.sum()))
        return "transport", (
            f"transport: {waits}, and {share} of that is work of its own in next(): drawing "
            "indices, building the batch, pinning it"
        )
    return _cause_of_parking(case, waits, made)


def _cause_of_parking(case: Case, waits: str, made: str) -> tuple[str, str]:
    facts, setting, making = case.facts, case.setting, case.making
    if _is_short_of_slots(case):
        return "held", (
            f"held: {waits}; {times(setting.workers, 'worker')} with "
            f"{times(setting.slots, 'slot')} have no order "
            f"{percent(1 - facts['busy_share'])} of the time"
        )
    if facts["blocked_s"] > 0.2 * float(making.mean()):
        return "memory", (
            f"memory: {waits}; a worker waits {duration(facts['blocked_s'])} a batch for pages of "
            f"its slot (ring_bytes is {size(setting.ring_bytes)})"
        )
    slow = slow_worker(case)
    if slow is not None:
        worker, longer = slow
        return "worker", (
            f"worker: {waits}, mostly for worker {worker}, which takes {longer:.1f} times as "
            "long for a batch as the others"
        )
    delayed = facts["delayed_share"]
    if delayed > 0.2 and case.removes(making * (1 - delayed)) > _MOST:
        return "cpu", (
            f"cpu: {waits}; the workers are ready to run but find no core for "
            f"{percent(facts['delayed_share'])} of their time: "
            f"{times(setting.workers, 'worker')} and "
            f"the trainer on {cores(setting.cores, setting.ranks)}; {made}"
        )
    bad = _bad_samples(case)
    if bad is not None:
        return "sample", f"sample: {waits}, mostly for {bad}; {made}"
    name = "collating" if facts["collating_s"] > facts["fetching_s"] else "fetching"
    shared = (
        "1 worker does all of it"
        if setting.workers == 1
        else (f"{setting.workers} workers share that")
    )
    return name, f"{name}: {waits}; {made}; {shared}"


def _is_short_of_bytes(case: Case) -> bool:
    """Returns True if ring_bytes is too small for what is on its way, not for what is kept."""
    is_for_bytes = most_spills(case) in ("too_few_bytes", "for_an_earlier_batch")
    blocked = case.facts["blocked_s"] > 0.05 * float(case.making.mean())
    return is_for_bytes and blocked


def most_spills(case: Case) -> str | None:
    """The reason for which most batches were copied out of their slots."""
    reasons = case.epoch.spills
    return max(reasons, key=lambda reason: reasons[reason]) if reasons else None


def _spill_reason(case: Case) -> str:
    most = most_spills(case)
    if most is None:
        return "too much is held"
    return {
        "kept_by_worker": "the workers keep what they collate",
        "too_few_slots": "more are held than slots can be spared",
        "for_children": "forked processes may still read slots",
        "too_few_bytes": "more bytes are held than ring_bytes can spare",
        "for_an_earlier_batch": "an earlier batch needed the room",
    }.get(most, most)


def _is_short_of_slots(case: Case) -> bool:
    """Returns True if the workers lack orders because the slots are used up."""
    setting = case.setting
    ahead = setting.workers * setting.prefetch_factor
    if setting.slots >= ahead + 2 or case.facts["busy_share"] > 0.85:
        return False
    played = case.play(case.making, replace(setting, slots=ahead + 6))
    return played.wait_share < _MOST * case.base.wait_share


def slow_worker(case: Case) -> tuple[int, float] | None:
    """Find the worker without whose slowness most of the waiting would be gone."""
    worker, making = case.timeline.worker, case.making
    numbers = numpy.unique(worker)
    if len(numbers) < 2 or min(int((worker == each).sum()) for each in numbers) < 3:
        return None
    medians = {int(each): float(numpy.median(making[worker == each])) for each in numbers}
    slowest = max(medians, key=lambda each: medians[each])
    others = float(numpy.median([medians[each] for each in medians if each != slowest]))
    if others <= 0 or medians[slowest] < 1.4 * others:
        return None
    cured = numpy.where(worker == slowest, making * others / medians[slowest], making)
    parked = case.timeline.parked
    share = float(parked[worker == slowest].sum() / parked.sum())
    if case.removes(cured) < _MOST and share < 0.8:
        return None
    return slowest, medians[slowest] / others


def _bad_samples(case: Case) -> str | None:
    """Describe the few samples without which most of the waiting would be gone."""
    timeline, making = case.timeline, case.making
    typical = float(numpy.median(making))
    is_seen = ~numpy.isnan(timeline.longest)
    is_bad = making > 2 * typical
    if is_seen.all():
        # The batch is long because of one sample, not because all are.
        is_bad &= timeline.longest > 0.5 * (making - typical)
    share = float(is_bad.mean())
    if not 0 < share <= 0.3:
        return None
    cured = numpy.where(is_bad, typical, making)
    if case.removes(cured) < _MOST:
        return None
    worst = numpy.argsort(making)[::-1][: min(3, int(is_bad.sum()))]
    indices = [int(timeline.longest_index[each]) for each in worst]
    if is_seen.all() and min(indices) >= 0:
        times = ", ".join(
            f"{index} ({duration(float(timeline.longest[each]))})"
            for index, each in zip(indices, worst, strict=True)
        )
        case.facts["samples"] = indices
        return f"single slow samples, such as dataset index {times}"
    return f"{percent(share)} of the batches, which take {duration(float(making[worst[0]]))}"
