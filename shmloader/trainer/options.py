"""Our options of a loader: one record, checked in one place."""

import numbers
from dataclasses import asdict, dataclass
from typing import Any

import numpy

_RING_BYTES_MIN = 1 << 16
_SLOTS_MAX = 1 << 20
_BYTES_MAX = 1 << 62
_THREADS_MAX = 1 << 12
_NICE_MAX = 19  # the kernel has no more

CYCLE, DYNAMIC = "cycle", "dynamic"
BY_WORKER, BY_BATCH = "worker", "batch"
AUTO = "auto"


@dataclass(frozen=True)
class Options:
    """
    What a loader may be told beyond torch's arguments; `DataLoader` says what each means.

    Raises:
        TypeError: An option is of a wrong type.
        ValueError: An option is out of range.
    """

    slots: int | None = None
    slot_bytes: int | None = None
    ring_bytes: int | None = None
    keep_pages: bool = True
    restarts: int = 0
    assignment: str = CYCLE
    seed_by: str = BY_WORKER
    fetch_threads: int | str = 0
    overlap_epochs: bool = False
    nice: int = 0
    worker_bytes: int | None = None
    resumable: bool = False

    def __post_init__(self) -> None:
        self._settle("restarts", _count("restarts", self.restarts, 0, None))
        self._settle("slots", _count_or_none("slots", self.slots, 1, _SLOTS_MAX))
        self._settle("slot_bytes", _count_or_none("slot_bytes", self.slot_bytes, 1, _BYTES_MAX))
        ring_bytes = _count_or_none("ring_bytes", self.ring_bytes, _RING_BYTES_MIN, _BYTES_MAX)
        self._settle("ring_bytes", ring_bytes)
        if self.slot_bytes is not None and ring_bytes is not None and self.slot_bytes > ring_bytes:
            raise ValueError(
                f"slot_bytes of {self.slot_bytes} exceeds ring_bytes of {ring_bytes}: raise "
                f"ring_bytes to at least {self.slot_bytes} or lower slot_bytes"
            )

        _choose("assignment", self.assignment, CYCLE, DYNAMIC)
        _choose("seed_by", self.seed_by, BY_WORKER, BY_BATCH)
        if not (isinstance(self.fetch_threads, str) and self.fetch_threads == AUTO):
            kind = 'an int or "auto"'
            threads = _count("fetch_threads", self.fetch_threads, 0, _THREADS_MAX, kind)
            self._settle("fetch_threads", threads)
        self._settle("overlap_epochs", _flag("overlap_epochs", self.overlap_epochs))
        self._settle("nice", _count("nice", self.nice, 0, _NICE_MAX))
        worker_bytes = _count_or_none("worker_bytes", self.worker_bytes, 1, _BYTES_MAX)
        self._settle("worker_bytes", worker_bytes)

    @property
    def replaces(self) -> bool:
        """True if workers that die or grow are replaced."""
        return self.restarts > 0 or self.worker_bytes is not None

    def _settle(self, name: str, value: int | None) -> None:
        object.__setattr__(self, name, value)  # as the dataclass itself does when it is frozen

    def by_name(self) -> dict[str, Any]:
        """Return the options as keyword arguments."""
        return asdict(self)


def _count(name: str, value: Any, least: int, most: int | None, kind: str = "an int") -> int:
    """Check an option; integers of numpy are as good as Python's, as with torch's options."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} should be {kind}, but got {value!r}")
    number = int(value)
    if number < least:
        raise ValueError(f"{name} should be at least {least}, but got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} should be at most {most}, but got {number}")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, numpy.bool_)):
        raise TypeError(f"{name} should be a bool, but got {value!r}")
    return bool(value)


def _choose(name: str, value: Any, *choices: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} should be a str, but got {value!r}")
    if value not in choices:
        raise ValueError(f"{name} should be {' or '.join(map(repr, choices))}, but got {value!r}")


def _count_or_none(name: str, value: Any, least: int, most: int) -> int | None:
    return None if value is None else _count(name, value, least, most, "an int or None")
