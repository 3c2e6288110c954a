"""What a loader has done so far, as records. Each becomes JSON by `dataclasses.asdict`."""

import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import zip_longest
from typing import Any, Self

_Counts = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Times:
    """
    How long something took each time; the sum of two is that of both together.

    The percentiles are within 1/32 of the truth, the other numbers are exact.

    Attributes:
        count: How many times were measured.
        total_s: Seconds it took, all times together.
        p50_s, p90_s, p99_s: Seconds that 50, 90 and 99 of 100 times did not exceed.
        longest_s: Seconds of the longest time.
        counts: Pairs of nanoseconds and how many times took about so long, shortest first; not
            printed.
    """

    count: int = 0
    total_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    longest_s: float = 0.0
    counts: _Counts = field(default=(), repr=False)

    @classmethod
    def of(cls, total_ns: float, longest_ns: float, counts: _Counts) -> Self:
        """Make the record of durations that were counted."""
        number = sum(times for _, times in counts)
        p50, p90, p99 = (_quantile(counts, number, part, longest_ns) for part in (50, 90, 99))
        seconds = (total_ns / 1e9, p50 / 1e9, p90 / 1e9, p99 / 1e9, longest_ns / 1e9)
        return cls(number, *seconds, counts=counts)

    def __add__(self, other: "Times") -> "Times":
        """Put the times of two records together."""
        if not other.counts or not self.counts:
            return self if self.counts else other
        both: dict[int, int] = dict(self.counts)
        for ns, times in other.counts:
            both[ns] = both.get(ns, 0) + times
        total_ns = (self.total_s + other.total_s) * 1e9
        longest_ns = max(self.longest_s, other.longest_s) * 1e9
        return Times.of(total_ns, longest_ns, tuple(sorted(both.items())))


def _quantile(counts: _Counts, number: int, percent: int, longest_ns: float) -> float:
    rank = -(-number * percent // 100)
    for ns, times in counts:
        rank -= times
        if rank <= 0:
            return min(ns, longest_ns)
    return 0.0


@dataclass(frozen=True)
class WorkerStats:
    """
    What one worker did; the replacement of a dead worker continues its record.

    Attributes:
        fetching_s: Seconds in the dataset, until the samples of a batch were there.
        collating_s: Seconds collating, and writing what was not collated into the slot.
        starved_s: Seconds parked without a request.
        blocked_s: Seconds waiting for pages of its slot in the middle of a batch.
        batches: Batches and errors that it sent.
        bytes: Bytes of their payload.
        cpu_s: Seconds its main thread ran; measured for single epochs only.
        delayed_s: Seconds that thread was ready to run and no core was free; as for cpu_s.
        left_out: Samples that `tolerant()` skipped.
        looks_found: Looks for a request before parking that found one.
        looks_vain: Looks that found none.
    """

    fetching_s: float = 0.0
    collating_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    batches: int = 0
    bytes: int = 0
    cpu_s: float = 0.0
    delayed_s: float = 0.0
    left_out: int = 0
    looks_found: int = 0
    looks_vain: int = 0

    def __add__(self, other: "WorkerStats") -> "WorkerStats":
        """Count two records together."""
        return WorkerStats(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, earlier: "WorkerStats") -> "WorkerStats":
        """Count what came after an earlier record."""
        return WorkerStats(*map(operator.sub, vars(self).values(), vars(earlier).values()))


class Spill(Enum):
    """Why a batch is copied out of its slot: in words, and what to do, without the numbers."""

    KEPT_BY_WORKER = (
        "the workers retain what they collate, as in a cache",
        "have the dataset and collate_fn drop or copy these tensors",
    )
    TOO_FEW_SLOTS = (
        "more batches are held than slots can be spared",
        "raise slots (now {slots}) by the number of batches that you retain, or drop them sooner",
    )
    FOR_CHILDREN = (
        "processes that were forked while batches were in use may still read {forked} slots",
        "fork before you iterate, end those processes, or raise slots (now {slots}) by that number",
    )
    TOO_FEW_BYTES = (
        "more bytes are held than ring_bytes can spare",
        "raise ring_bytes (now {ring_bytes}) or drop batches sooner",
    )
    FOR_AN_EARLIER_BATCH = (
        "an earlier batch needed the memory",
        "raise ring_bytes (now {ring_bytes}) or lower prefetch_factor",
    )
    FOR_COPIES = (
        "copies to a device may still read the slots of batches that were dropped",
        "raise slots (now {slots}), or have the training step wait for the device now and then",
    )

    def __init__(self, why: str, cure: str) -> None:
        self.why, self.cure = why, cure
        self.number = 1 + len(type(self).__members__)  # in the log of batches

    @property
    def label(self) -> str:
        """The reason in one word, as users read it in counts."""
        return self.name.lower()


@dataclass(frozen=True)
class Epoch:
    """
    What one epoch did, so far or as a whole.

    Attributes:
        number: The number of the epoch in its loader, from 1.
        is_over: False while it runs.
        batches: Batches delivered; an error of the dataset instead of a batch counts.
        length: Batches that the epoch has in all; None if that is not known in advance.
        bytes: Bytes of the delivered batches' payload.
        wall_s: Seconds from its iter() to its end, or until now.
        first_s: Seconds from its iter() to the first batch; None before that.
        wait_s: Seconds the training loop was parked, waiting for a batch.
        next: How long each next() took, including the wait and earlier calls that raised, such as
            by a timeout.
        step: How long the loop used each batch before the following next().
        workers: What each worker did in this epoch.
        spills: Batches that were copied out of their slots, by reason: `kept_by_worker`,
            `too_few_slots`, `too_few_bytes`, `for_an_earlier_batch`, `for_children` (processes
            that were forked may read the slots), `for_copies` (those to a device may).
        restarts: Workers that died and were replaced.
        trainer_cpu_s: Seconds of processor time of the training process, all threads together.
        trainer_delayed_s: Seconds the thread that began the epoch was ready to run and no core was
            free.
        copy_s: Seconds in next() spent starting or making copies to a device or into pinned memory.
        lock_s: Seconds of these in which slots were page-locked, each once.
        resumed_at: Batches of this epoch that an earlier run delivered, from whose state it
            resumed; all other numbers are of this run.
    """

    number: int
    is_over: bool
    batches: int
    length: int | None
    bytes: int
    wall_s: float
    first_s: float | None
    wait_s: float
    next: Times = Times()
    step: Times = Times()
    workers: tuple[WorkerStats, ...] = ()
    spills: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    trainer_cpu_s: float = 0.0
    trainer_delayed_s: float = 0.0
    copy_s: float = 0.0
    lock_s: float = 0.0
    resumed_at: int = 0

    @classmethod
    def of(cls, view: Mapping[str, Any], no_number: int, **more: Any) -> Self:
        """Make the record of an epoch from the training process's view; no_number means None."""
        begun_ns, first_ns, length = view["begun_ns"], view["first_ns"], view["length"]
        return cls(
            number=view["epoch"],
            batches=view["batches"],
            length=None if length == no_number else length,
            bytes=view["bytes"],
            wall_s=(time.monotonic_ns() - begun_ns) / 1e9,
            first_s=(first_ns - begun_ns) / 1e9 if first_ns else None,
            wait_s=view["parked_ns"] / 1e9,
            resumed_at=view["resumed_at"],
            **more,
        )


@dataclass(frozen=True)
class CacheStats:
    """
    What a cache of samples did so far, in all processes that use it.

    Attributes:
        number: The number of the cache in its process, from 1.
        label: The name of its dataset's class.
        hits: Samples that were copied from the cache.
        misses: Samples that were fetched.
        entries: Samples that the cache stores.
        bytes: Bytes of the stored samples, with all that belongs to them.
        max_bytes: Bytes that the cache may take at most.
        refused: How often the cache did not grow because memory was short.
    """

    number: int
    label: str
    hits: int
    misses: int
    entries: int
    bytes: int
    max_bytes: int
    refused: int


@dataclass(frozen=True)
class WorkersChange:
    """
    Workers that `num_workers="auto"` added or let go.

    Attributes:
        epoch: The number of the epoch.
        batch: How many batches of it were delivered before.
        before: How many workers there were.
        after: How many there are since.
        waited_share: The part of its time that the trainer waited before, from 0 to 1.
        waited_since: That part at the last look since; None: at an earlier change, or not known.
    """

    epoch: int
    batch: int
    before: int
    after: int
    waited_share: float
    waited_since: float | None = None


@dataclass(frozen=True)
class Stats:
    """
    Counts over all epochs of a loader since it was made; the sum of two is that of both loaders.

    Printed, it shows its numbers, one a line; print the records in it, from `next` on, by name.

    Attributes:
        batches: Batches delivered.
        bytes: Bytes of their payload.
        wait_s: Seconds the training loop was parked, waiting for a batch.
        worker_busy_s: Seconds workers fetched, collated and wrote, all workers together.
        worker_starved_s: Seconds workers were parked without a request.
        worker_blocked_s: Seconds workers waited for pages of their slots in mid-batch.
        spilled: Batches copied out of their slots into private memory, mostly because too many
            slots or bytes were held.
        restarts: Workers that died and were replaced.
        replaced: Workers replaced beyond `worker_bytes`, or a pool's `max_tasks_per_child`.
        retired: Slots taken out of use because a worker retained an alias of its batch.
        resident_bytes: Bytes of shared memory that have pages now, idle segments included.
        locked_bytes: Bytes of them that are page-locked for devices.
        pickled_bytes: Bytes of pickles that were sent in addition to the tensors.
        pickled_batches: Batches that had such a pickle.
        left_out: Samples that `tolerant()` skipped, in workers and in this process.
        looks_found: How often this process looked for a batch before it parked, and found one.
        looks_vain: How often it looked and parked after all.
        looks_s: Seconds that these looks took, which are a part of `wait_s`.
        slots: How many slots are in each state now, by the state's name: free, placed, ready,
            leased, fenced, forked, retired or spare.
        spills: Batches of `spilled` by reason, as in `Epoch`.
        copied: Batches for a device, by what became of them. With `device=`, copied there `direct`
            from their slots, or `staged` through pinned memory. With `pin_memory=True`, handed out
            `in_place`; `pinned`: copied, because there was no room for that; `staged`: copied,
            because it is smaller than a MiB or slots cannot be page-locked.
        next: How long each next() took, in all epochs.
        step: How long the loop used each batch before the following next().
        workers: What each worker did, in all epochs.
        changes: With `num_workers="auto"` the last changes of the number of workers, the newest
            last.
        caches: What each `cached()` in its dataset did, for this loader and for others.
        epochs: The last 64 epochs, the newest one last; it may be running.
        note: Why nothing is counted: torch's own loader runs here; "" if shmloader's does.
    """

    batches: int = 0
    bytes: int = 0
    wait_s: float = 0.0
    worker_busy_s: float = 0.0
    worker_starved_s: float = 0.0
    worker_blocked_s: float = 0.0
    spilled: int = 0
    restarts: int = 0
    replaced: int = 0
    retired: int = 0
    resident_bytes: int = 0
    locked_bytes: int = 0
    pickled_bytes: int = 0
    pickled_batches: int = 0
    left_out: int = 0
    looks_found: int = 0
    looks_vain: int = 0
    looks_s: float = 0.0
    slots: dict[str, int] = field(default_factory=dict)
    spills: dict[str, int] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)
    next: Times = field(default=Times(), repr=False)
    step: Times = field(default=Times(), repr=False)
    workers: tuple[WorkerStats, ...] = field(default=(), repr=False)
    changes: tuple[WorkersChange, ...] = field(default=(), repr=False)
    caches: tuple[CacheStats, ...] = field(default=(), repr=False)
    epochs: tuple[Epoch, ...] = field(default=(), repr=False)
    note: str = field(default="", repr=False)

    def __repr__(self) -> str:
        """Show the numbers, one a line."""
        shown = [
            f"    {each.name}={getattr(self, each.name)!r},\n" for each in fields(self) if each.repr
        ]
        return f"{type(self).__name__}(\n{''.join(shown)})"

    def __str__(self) -> str:
        """Show the numbers, and the note if there is one."""
        return f"{self!r}: {self.note}" if self.note else repr(self)

    def __add__(self, other: "Stats") -> "Stats":
        """Count two records together."""
        workers = zip_longest(self.workers, other.workers, fillvalue=WorkerStats())
        # Each cache once: its counts are those of all loaders.
        caches = {cache.number: cache for cache in (*self.caches, *other.caches)}
        together: dict[str, Any] = {
            "note": self.note or other.note,
            "workers": tuple(one + two for one, two in workers),
            "caches": tuple(caches.values()),
        }
        for each in fields(self):
            one, two = getattr(self, each.name), getattr(other, each.name)
            if each.name not in together:
                together[each.name] = _sum_of(one, two) if isinstance(one, dict) else one + two
        return Stats(**together)

    def past(self) -> "Stats":
        """Return the counts that stay true when the segment is freed."""
        return replace(self, resident_bytes=0, locked_bytes=0, slots={})


def _sum_of(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


@dataclass(frozen=True)
class Held:
    """
    A batch whose slot is still in use.

    Attributes:
        ticket: The number of the batch in its iterator, from 0.
        held_s: Seconds since it was delivered.
        leases: How many storages and arrays' bases still point into its slot.
    """

    ticket: int
    held_s: float
    leases: int
