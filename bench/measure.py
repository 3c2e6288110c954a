"""One contender on one workload: a checked warm-up epoch, then timed epochs."""

import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median

import numpy as np
from torch.utils.data import DataLoader

from bench import usage
from bench.batches import difference, payload_bytes, touch
from bench.loads.pools import Workload

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
    contender, workload: Workload, workers: int, epochs: int, persistent: bool, context: str
) -> dict:
    """Run a warm-up epoch and timed ones, in half a minute."""
    size = _size(workload)  # builds the pool, which belongs to no contender's time or memory
    before = usage.resources()
    begin = time.perf_counter()
    loader = contender.make_loader(workload, workers, persistent=persistent, context=context)
    with closing(loader):
        warm_up = check(loader, workload, begin)
        counted = usage.totals()
        timed = _timed_epochs(loader, epochs)
        used = {name: total - counted[name] for name, total in usage.totals().items()}
    return {
        **_correctness(warm_up, timed),
        "epochs": len(timed),
        **size,
        **_times(timed),
        "first_batch_s": warm_up.first_batch_s,
        **per_batch(used, workload.batches * len(timed)),
        **{f"{name}_peak": warm_up.peaks[name] - before[name] for name in before},
    }


def check(loader, workload: Workload, begin: float) -> WarmUp:
    """Compare all batches of one epoch whole; begin: when the loader began to be made."""
    seen = WarmUp()
    look_every = max(1, workload.batches // _LOOKS)
    pairs = zip_longest(_note_first(loader, begin, seen), _expected(workload), fillvalue=_MISSING)
    for turn, (batch, right) in enumerate(pairs):
        seen.mistake = seen.mistake or _mistake(turn, right, batch)
        if right is _MISSING:
            break
        seen.touches.append(touch(right))
        if turn % look_every == 0:
            for name, amount in usage.resources().items():
                seen.peaks[name] = max(amount, seen.peaks.get(name, amount))
    return seen


def _timed_epochs(loader, epochs: int) -> list[Epoch]:
    timed: list[Epoch] = []
    begin = time.perf_counter()
    while len(timed) < epochs:
        if len(timed) >= _FEWEST_EPOCHS and time.perf_counter() - begin > _ENOUGH_S:
            break
        timed.append(timed_epoch(loader))
    return timed


def timed_epoch(loader) -> Epoch:
    """Take every batch and touch it; the epoch lasts from iter() to the end of the iteration."""
    clock = time.perf_counter_ns
    asked, got, touches = [], [], []
    begin = clock()
    batches = iter(loader)
    while True:
        asked.append(clock())
        batch = next(batches, _MISSING)
        got.append(clock())
        if batch is _MISSING:
            break
        touches.append(touch(batch))
    ms_per_batch = (got[-1] - begin) / 1e6 / max(1, len(touches))
    asked[0] = begin
    waits = [(end - start) / 1e6 for start, end in zip(asked, got, strict=True)]
    return Epoch(ms_per_batch, waits[:-1], touches)


def per_batch(used: dict[str, float], batches: int) -> dict[str, float]:
    """Turn what was used into figures per batch; CPU seconds become ms."""
    figures = {}
    for name, amount in used.items():
        scale, name = (1e3, name[:-1] + "ms") if name.endswith("_s") else (1, name)
        figures[name] = amount * scale / batches
    return figures


def _expected(workload: Workload) -> DataLoader:
    return DataLoader(
        workload.dataset(), batch_size=workload.batch_size, collate_fn=workload.collate_fn
    )


def _note_first(loader, begin: float, seen: WarmUp):
    for batch in loader:
        seen.first_batch_s = seen.first_batch_s or time.perf_counter() - begin
        yield batch


def _size(workload: Workload) -> dict[str, float]:
    """Return what a batch is, and what touching it costs the trainer's CPU."""
    batch = next(iter(_expected(workload)))
    begin = time.process_time()
    for _ in range(_TOUCH_TRIALS):
        touch(batch)
    touch_cpu_ms = (time.process_time() - begin) * 1e3 / _TOUCH_TRIALS
    return {
        "batches": workload.batches,
        "batch_mb": payload_bytes(batch) / 1e6,
        "touch_cpu_ms": touch_cpu_ms,
    }


def _mistake(turn: int, right, batch) -> str | None:
    if right is _MISSING or batch is _MISSING:
        return f"the epoch has {'more than' if right is _MISSING else 'only'} {turn} batches"
    found = difference(right, batch)
    return f"batch {turn}: {found}" if found else None


def _correctness(warm_up: WarmUp, timed: list[Epoch]) -> dict:
    mistake = warm_up.mistake
    for number, epoch in enumerate(timed):
        if not mistake and epoch.touches != warm_up.touches:
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
