"""What to change about a cause: the options to set, and a line for people."""

from dataclasses import replace
from typing import Any

import numpy

from shmloader.metrics.case import Case
from shmloader.metrics.causes import FREE, most_spills, slow_worker
from shmloader.metrics.tuner import DEPTHS, Prediction, Tuner, counts_from
from shmloader.metrics.words import number, percent

Advice = tuple[dict[str, Any], list[str]]


def advice_for(case: Case, cause: str) -> Advice:
    """Returns the options to set, by name, and what to say of them."""
    if cause in ("fetching", "collating", "cpu", "worker"):
        return _other_workers(case, cause)
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


def _other_workers(case: Case, cause: str) -> Advice:
    setting = case.setting
    slow = slow_worker(case) if cause == "worker" else None
    tuner = Tuner(case, own_delays_only=cause != "cpu", slow=slow)
    counts = counts_from(1 if cause == "cpu" else setting.workers)
    found = tuner.choose(tuner.settings(counts, (setting.prefetch_factor,)))
    lines = []
    if cause == "worker":
        lines.append("look at that process: its node, its core, its share of the data")
    if found.setting.workers == setting.workers:
        limit = f"{number(setting.cores)} cores are the limit: make a sample cheaper, cache it, or"
        line = (
            f"{limit} use more cores"
            if found.is_bound_by_cores
            else "no other number of workers would help much"
        )
        return {}, [*lines, line]
    advice = _changes(case, found)
    line = _said(advice, found)
    if found.setting.workers > setting.cores:
        line += f" ({setting.workers} workers run on {number(setting.cores)} cores)"
    if found.wait_share > FREE and found.is_bound_by_cores:
        line += f"; more than that {number(setting.cores)} cores do not do"
    return advice, [*lines, line]


def _more_ahead(case: Case) -> Advice:
    setting = case.setting
    tuner = Tuner(case)
    depths = [depth for depth in DEPTHS if depth >= setting.prefetch_factor]
    depths = depths or [setting.prefetch_factor]
    found = tuner.choose(tuner.settings([setting.workers], depths))
    if found.wait_share > 2 * FREE:
        found = tuner.choose(tuner.settings(counts_from(setting.workers), depths))
    advice = _changes(case, found)
    lines = [_said(advice, found)] if advice else []
    if setting.in_order:
        free = tuner.predict(replace(setting, in_order=False))
        if free.wait_share < 0.5 * case.wait_share:
            lines.append(
                "or in_order=False, if their order does not matter: about "
                f"{percent(free.wait_share)} of the time"
            )
    return advice, lines or ["repair or drop those samples"]


def _changes(case: Case, found: Prediction) -> dict[str, Any]:
    """List the options that are others than now."""
    setting, advice = case.setting, {}
    if found.setting.prefetch_factor != setting.prefetch_factor:
        advice["prefetch_factor"] = found.setting.prefetch_factor
    if found.setting.workers != setting.workers:
        advice["num_workers"] = found.setting.workers
    if advice and setting.chosen_slots is not None and setting.chosen_slots < found.setting.slots:
        advice["slots"] = found.setting.slots
    return advice


def _said(advice: dict[str, Any], found: Prediction) -> str:
    pairs = " and ".join(f"{name}={value}" for name, value in advice.items())
    share = percent(found.wait_share)
    return (
        f"set {pairs}: it would wait about {share} of the time, {1 / found.batch_s:.3g} batches/s"
    )


def _more_slots(case: Case) -> Advice:
    setting = case.setting
    if most_spills(case) == "too_few_bytes":
        return _more_bytes(case, "drop batches sooner")
    if most_spills(case) == "kept_by_worker":
        return {}, ["have the dataset and collate_fn drop or copy what they return"]
    held = int(numpy.ceil(case.facts["held_batches"]))
    if case.facts["spilled_share"] > 0.2:
        held = max(held, setting.slots)
    # With slots enough the workers may still be too few.
    tuner = Tuner(case)
    found = tuner.choose(tuner.settings(counts_from(setting.workers), (setting.prefetch_factor,)))
    advice = _changes(case, found) if found.wait_share + FREE < case.wait_share else {}
    workers = advice.get("num_workers", setting.workers)
    advice["slots"] = workers * setting.prefetch_factor + max(6, held + 2)
    pairs = " and ".join(f"{name}={value}" for name, value in advice.items())
    return advice, [f"set {pairs}, or drop batches sooner"]


def _more_bytes(case: Case, otherwise: str) -> Advice:
    setting = case.setting
    slots = Tuner(case).slots_for(setting.workers, setting.prefetch_factor)
    needed = slots * int(case.timeline.bytes.max()) * 5 // 4
    needed = max(needed, 2 * setting.ring_bytes)
    return {"ring_bytes": needed}, [f"set ring_bytes={needed}, or {otherwise}"]
