"""What all processes hold, sampled while batches flow, and whether any of it grows."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.usage import count_descriptors, memory_bytes, process_ids
from shmloader.stats.records import Epoch


@dataclass(frozen=True)
class Quantity:
    """
    Something that must not grow.

    Args:
        key: Its name in a sample.
        tolerance: How much more may be there at the end without a leak: samples differ in how many
            workers live, and in whether the trainer started them itself.
    """

    key: str
    tolerance: float


QUANTITIES = (
    Quantity("trainer_mb", 3),
    Quantity("other_mb", 40),
    Quantity("shared_mb", 8),
    Quantity("trainer_descriptors", 6),
    # From 18, of a worker that the trainer forked, to 29, of a nursery with three that it forked.
    Quantity("most_descriptors", 12),
    Quantity("processes", 3),
    Quantity("threads", 0),
    Quantity("mappings", 20),
    Quantity("objects", 150),
)

_RECORDS = Epoch.__module__


def settle() -> None:
    """Leave what exists now out of all later counts of objects."""
    gc.collect()
    gc.freeze()


def sample() -> dict[str, float]:
    """
    Count what trainer and workers hold at this moment.

    Returns:
        Of the trainer: private memory in MB, descriptors, threads, mapped regions, Python objects
        that the garbage collector knows, without the records of the last 64 epochs. Of all
        processes: how many they are, the most private memory of another than the trainer, the most
        descriptors, and the shared memory they map.
    """
    gc.collect()
    _trim_heap()
    pids = process_ids()
    memory = [memory_bytes(pid) for pid in pids]
    descriptors = [count_descriptors(pid) for pid in pids]
    return {
        "trainer_mb": memory[0]["Anonymous"] / 1e6,
        "other_mb": max((each["Private_Dirty"] for each in memory[1:]), default=0) / 1e6,
        "shared_mb": sum(each["Pss_Shmem"] for each in memory) / 1e6,
        "trainer_descriptors": descriptors[0],
        "most_descriptors": max(descriptors),
        "processes": len(pids),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "objects": sum(type(each).__module__ != _RECORDS for each in gc.get_objects()),
    }


def _trim_heap() -> None:
    """Give back what is free in C's heap, if the C library can: it is no leak."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(frozen=True)
class Change:
    """How much of something there was at first, and at last."""

    quantity: Quantity
    first: float
    last: float

    @property
    def is_growth(self) -> bool:
        """True if it grew by more than the tolerance explains; less is no fault."""
        return self.last - self.first > self.quantity.tolerance

    def __str__(self) -> str:
        return f"{self.quantity.key}: {self.first:.6g} at first, {self.last:.6g} at last"


def changes(samples: list[dict[str, float]], kept_mb: float = 0) -> list[Change]:
    """
    Compare the first quarter's median with the last quarter's, for each quantity.

    Args:
        kept_mb: What the trainer keeps. Slots that are leased when a nursery is started in
            mid-epoch stay out of use while it and its workers live, so shared memory grows by that.
    """
    quarter = -(-len(samples) // 4)
    first = _medians(samples[:quarter])
    first["shared_mb"] += kept_mb
    return between(first, _medians(samples[-quarter:]))


def between(first: dict[str, float], last: dict[str, float]) -> list[Change]:
    """Compare two samples, for each quantity."""
    return [Change(each, first[each.key], last[each.key]) for each in QUANTITIES]


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {each.key: median(sample[each.key] for sample in samples) for each in QUANTITIES}
