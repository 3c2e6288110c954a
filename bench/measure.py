"""A loader and what it reads: a checked warm-up epoch, then timed epochs."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median
from typing import Any

import numpy as np
import torch

from bench import usage
from bench.batches import are_equal, payload_bytes, touch
from bench.loops import play

_TOUCH_TRIALS = 200
_LOOKS = 12  # how often the warm-up epoch looks at memory and descriptors
_ENOUGH_S = 30  # no further timed epoch after this: only a contender in trouble takes as long
_FEWEST_EPOCHS = 2  # one alone may have been disturbed
_MISSING = object()


@dataclass
class WarmUp:
    """What the untimed epoch found: the first mistake, and the peaks of memory and descriptors."""

    first_batch_s: float = 0.0
    mistake: str | None = None
    touches: list = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)


@dataclass
class Epoch:
    """One timed epoch; the waits are those of each next() that returned a batch."""

    ms_per_batch: float
    waits_ms: list[float]
    touches: list


def measure(
    open_loader: Callable[[], Any], load: Any, epochs: int, in_order: bool = True
) -> dict[str, Any]:
    """
    Run a warm-up epoch and timed ones, in half a minute.

    Args:
        load: Has `batches`, how many there are, and `expected()`, those of an epoch.
        in_order: False: batches are tensors, whose rows may come in any order.
    """
    size = _size(load)  # builds what it is made of, which belongs to no contender's time or memory
    before = usage.resources()
    begin = time.perf_counter()
    with closing(open_loader()) as loader:
        warm_up = _check(loader, load, begin, in_order)
        counted = usage.totals()
        timed = _timed_epochs(loader, epochs)
        used = {name: total - counted[name] for name, total in usage.totals().items()}
    return {
        **_correctness(warm_up, timed, load.batches if not in_order else None),
        "epochs": len(timed),
        **size,
        **_times(timed),
        "first_batch_s": warm_up.first_batch_s,
        **per_batch(used, load.batches * len(timed)),
        **{f"{name}_peak": warm_up.peaks[name] - before[name] for name in before},
    }


def _check(loader, load: Any, begin: float, in_order: bool) -> WarmUp:
    """Compare all batches of one epoch whole; begin: when the loader began to be made."""
    seen = WarmUp()
    # Rows are more than batches.
    look_every = max(1, load.batches // _LOOKS) if in_order else load.batches
    ordered = iter if in_order else _by_number
    came, due = ordered(_note_first(loader, begin, seen)), ordered(load.expected())
    for turn, (batch, right) in enumerate(zip_longest(came, due, fillvalue=_MISSING)):
        seen.mistake = seen.mistake or _mistake(turn, right, batch)
        if right is _MISSING:
            break
        seen.touches.append(touch(right))
        if turn % look_every == 0:
            for name, amount in usage.resources().items():
                seen.peaks[name] = max(amount, seen.peaks.get(name, amount))
    return seen


def _by_number(batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """List the rows of all batches by their first number."""
    return iter(sorted((row for batch in batches for row in batch), key=lambda row: int(row[0])))


def _timed_epochs(loader, epochs: int) -> list[Epoch]:
    timed: list[Epoch] = []
    begin = time.perf_counter()
    while len(timed) < epochs:
        if len(timed) >= _FEWEST_EPOCHS and time.perf_counter() - begin > _ENOUGH_S:
            break
        timed.append(_timed_epoch(loader))
    return timed


def _timed_epoch(loader) -> Epoch:
    """Take every batch and touch it; the epoch lasts from iter() to the end of the iteration."""
    touches: list = []
    begin = time.perf_counter()
    played = play(loader, lambda batch: touches.append(touch(batch)))
    ms_per_batch = (time.perf_counter() - begin) * 1e3 / max(1, len(touches))
    return Epoch(ms_per_batch, [1e3 * wait for wait in played.waits_s()], touches)


def per_batch(used: dict[str, float], batches: int) -> dict[str, float]:
    """Turn what was used into figures per batch; CPU seconds become ms."""
    figures = {}
    for name, amount in used.items():
        scale, name = (1e3, name[:-1] + "ms") if name.endswith("_s") else (1, name)
        figures[name] = amount * scale / batches
    return figures


def _note_first(loader, begin: float, seen: WarmUp):
    for batch in loader:
        seen.first_batch_s = seen.first_batch_s or time.perf_counter() - begin
        yield batch


def _size(load: Any) -> dict[str, float]:
    """Return what a batch is, and what touching it costs the trainer's CPU."""
    batch = next(iter(load.expected()))
    begin = time.process_time()
    for _ in range(_TOUCH_TRIALS):
        touch(batch)
    touch_cpu_ms = (time.process_time() - begin) * 1e3 / _TOUCH_TRIALS
    return {
        "batches": load.batches,
        "batch_mb": payload_bytes(batch) / 1e6,
        "touch_cpu_ms": touch_cpu_ms,
    }


def _mistake(turn: int, right, batch) -> str | None:
    if right is _MISSING or batch is _MISSING:
        return f"the epoch has {'more than' if right is _MISSING else 'only'} {turn} batches"
    return None if are_equal(right, batch) else f"batch {turn} differs"


def _correctness(warm_up: WarmUp, timed: list[Epoch], counted: int | None) -> dict:
    """Compare the timed epochs too; counted: only that so many batches came."""
    mistake = warm_up.mistake
    for number, epoch in enumerate(timed):
        due, came = (warm_up.touches, epoch.touches)
        if not mistake and (due != came if counted is None else counted != len(came)):
            mistake = f"timed epoch {number}: a touched value is not the dataset's"
    return {"correct": mistake is None, "mistake": mistake}


def _times(timed: list[Epoch]) -> dict:
    waits = np.concatenate([epoch.waits_ms[1:] for epoch in timed])
    epoch_ms = [epoch.ms_per_batch for epoch in timed]
    return {
        "ms_per_batch": median(epoch_ms),
        "next_ms_median": float(np.median(waits)),
        "next_ms_p99": float(np.percentile(waits, 99)),
        "epoch_first_batch_ms": median(epoch.waits_ms[0] for epoch in timed),
    }
