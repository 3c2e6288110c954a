"""Our options of a loader: one record, checked in one place."""

import numbers
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy

_RING_BYTES_MIN = 1 << 16
_SLOTS_MAX = 1 << 20
_BYTES_MAX = 1 << 62
_THREADS_MAX = 1 << 12
_AHEAD_MAX = 1 << 10
_NICE_MAX = 19  # the kernel has no more

CYCLE, DYNAMIC = "cycle", "dynamic"
BY_WORKER, BY_BATCH = "worker", "batch"
AUTO = "auto"
CPU = "cpu"


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
    device: Any = None  # a str once it is checked
    prefetch_to_device: int = 2
    device_transform: Callable[[Any], Any] | None = None

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
        self._settle("device", _device_or_none(self.device))
        ahead = _count("prefetch_to_device", self.prefetch_to_device, 0, _AHEAD_MAX)
        self._settle("prefetch_to_device", ahead)
        if self.device_transform is not None and not callable(self.device_transform):
            raise TypeError(
                f"device_transform should be a callable or None, but got {self.device_transform!r}"
            )

    @property
    def replaces(self) -> bool:
        """True if workers that die or grow are replaced."""
        return self.restarts > 0 or self.worker_bytes is not None

    def _settle(self, name: str, value: int | str | None) -> None:
        object.__setattr__(self, name, value)  # as the dataclass itself does when it is frozen

    def by_name(self) -> dict[str, Any]:
        """Return the options as keyword arguments."""
        # Not asdict(), which copies what it does not know, such as a module that transforms.
        return {field.name: getattr(self, field.name) for field in fields(self)}


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


def _device_or_none(value: Any) -> str | None:
    """Check what names a device; a text is kept, because it can be pickled and compared."""
    if value is None:
        return None
    import torch  # not above: the command line reads options without it

    if not isinstance(value, str | torch.device):
        raise TypeError(f"device should be a str, a torch.device or None, but got {value!r}")
    try:
        device = torch.device(value)
    except RuntimeError:
        device = None
    if device is None or device.type == "meta":
        raise ValueError(f'device should be such as "cuda" or "cuda:1", but got {value!r}')
    return CPU if device.type == CPU else str(device)  # which has one, with or without its index
