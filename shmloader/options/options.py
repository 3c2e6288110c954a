"""
Our options of a loader: one record, of which all functions that take options have them.

A new option is a field of `Options` and a key of `Given`, with a paragraph in the docstring of
`DataLoader`; what it cannot go with, or needs to have an effect besides workers, is a row in
rules.py. One that works without workers needs nothing, which is a row too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from shmloader.memory import limits, policy
from shmloader.setup.arguments import check_count, check_flag
from shmloader.setup.components import require_component
from shmloader.stats.setting import CYCLE, DYNAMIC

if TYPE_CHECKING:
    import torch  # the command line reads options without it

_SLOTS_MAX = 1 << 20
_BYTES_MAX = 1 << 62
_THREADS = "an int, such as 8 (shmloader.tune() finds the best one)"
_THREADS_MAX = 1 << 12
_AHEAD_MAX = 1 << 10
_WORKERS_MAX = 1 << 12
_NICE_MAX = 19  # the kernel has no more

Assignment = Literal["cycle", "dynamic"]
SeedBy = Literal["worker", "batch"]

BY_WORKER, BY_BATCH = "worker", "batch"
CPU = "cpu"
AUTO = "auto"  # as num_workers

Check = Callable[[str, Any], Any]  # of a name and a value; returns the value to keep
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Device:
    """
    A device for batches, with options for the copies to it.

    Args:
        name: Such as "cuda" or "cuda:1"; "cpu" copies nothing.
        prefetch: How many batches are copied before the loop requests them, 0 to 1024. Each
            takes memory of the device.
        transform: Called with each batch on the device, on the stream of copies; its result is the
            batch. Use it to send bytes and convert them to floats on the device.

    Raises:
        TypeError: One is of a wrong type.
        ValueError: The name is not one of a device, or `prefetch` is out of range.
    """

    name: str | torch.device  # a str once it is checked
    prefetch: int = 2
    transform: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _device_name(self.name))
        object.__setattr__(self, "prefetch", _count(0, _AHEAD_MAX)("prefetch", self.prefetch))
        if self.transform is not None and not callable(self.transform):
            raise TypeError(f"transform should be a callable or None, but got {self.transform!r}")

    @property
    def copies(self) -> bool:
        """True if batches are copied; batches for the CPU are not."""
        return self.name != CPU


def _device_name(value: Any) -> str:
    """Check what names a device; a text is kept, because it can be pickled and compared."""
    import torch

    if not isinstance(value, str | torch.device):
        raise TypeError(
            f"device should be a str, a torch.device or a shmloader.Device, but got {value!r}"
        )
    try:
        device = torch.device(value)
    except RuntimeError:
        device = None
    if device is None or device.type == "meta":
        raise ValueError(f'device should be such as "cuda" or "cuda:1", but got {value!r}')
    return CPU if device.type == CPU else str(device)  # which has one, with or without its index


def _device(name: str, value: Any) -> Device | None:
    device = value if value is None or isinstance(value, Device) else Device(value)
    if device is not None and device.copies:
        require_component("device=", "device")
    return device


def modules(name: str, value: Any) -> tuple[str, ...] | None:
    """Check names of modules; they are kept in a tuple."""
    if value is None:
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f'{name} should be such as ("torchvision",) or None, but got {value!r}')
    for each in value:
        if not isinstance(each, str):
            raise TypeError(f"{name} should hold names of modules, but got {each!r}")
        if not all(part.isidentifier() for part in each.split(".")):
            raise ValueError(f"{name} should hold names of modules, but got {each!r}")
    return tuple(value)


def _resumable(name: str, value: Any) -> Any:
    if check_flag(name, value):
        require_component("resumable=", "order/resuming")
    return value


def _count(least: int, most: int | None, *others: None, kind: str = "an int") -> Check:
    """Make a check of a number; as with torch's options, numpy's integers are as good."""

    def check(name: str, value: Any) -> Any:
        if value is None and others:
            return value
        return check_count(name, value, least, most, kind + " or None" * len(others))

    return check


def _one_of(*choices: str) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{name} should be a str, but got {value!r}")
        if value not in choices:
            raise ValueError(
                f"{name} should be {' or '.join(map(repr, choices))}, but got {value!r}"
            )
        return value

    return check


def _option(default: Any, check: Check, help: str) -> Any:
    """Describe an option: what checks it, and a line on it for the command line."""
    return field(default=default, metadata={"check": check, "help": help})


class Given(TypedDict, total=False):
    """The options as keyword arguments, for type checkers."""

    slots: int | None
    slot_bytes: int | None
    ring_bytes: int | None
    keep_pages: bool
    restarts: int
    assignment: Assignment
    seed_by: SeedBy
    min_workers: int | None
    max_workers: int | None
    fetch_threads: int
    nice: int
    worker_bytes: int | None
    resumable: bool
    device: Device | str | torch.device | None
    preload: Sequence[str] | None


@dataclass  # not frozen: to type checkers a loader has these attributes, which may be set
class Options:
    """What a loader may be told beyond torch's arguments; `DataLoader` says what each means."""

    slots: int | None = _option(None, _count(1, _SLOTS_MAX, None), "number of slots of each loader")
    slot_bytes: int | None = _option(
        None, _count(1, _BYTES_MAX, None), "bytes that are pre-faulted in each slot"
    )
    ring_bytes: int | None = _option(
        None,
        _count(policy.RING_BYTES_MIN, _BYTES_MAX, None),
        "most bytes that all slots may retain",
    )
    keep_pages: bool = _option(True, check_flag, "retain memory for the next epoch")
    restarts: int = _option(0, _count(0, None), "worker deaths to recover from in each epoch")
    assignment: Assignment = _option(
        CYCLE, _one_of(CYCLE, DYNAMIC), '"dynamic": send each request to the worker with the fewest'
    )
    seed_by: SeedBy = _option(
        BY_WORKER, _one_of(BY_WORKER, BY_BATCH), '"batch": random numbers depend on the batch alone'
    )
    min_workers: int | None = _option(
        None, _count(1, _WORKERS_MAX, None), 'the least workers with num_workers="auto"'
    )
    max_workers: int | None = _option(
        None, _count(1, _WORKERS_MAX, None), 'the most workers with num_workers="auto"'
    )
    fetch_threads: int = _option(
        0, _count(0, _THREADS_MAX, kind=_THREADS), "threads that fetch in each worker"
    )
    nice: int = _option(0, _count(0, _NICE_MAX), "added to the niceness of each worker, 0 to 19")
    worker_bytes: int | None = _option(
        None, _count(1, _BYTES_MAX, None), "bytes of growth after which a worker is replaced"
    )
    resumable: bool = _option(
        False, _resumable, "workers send their position with each batch, for exact resuming"
    )
    device: Device | None = _option(None, _device, '"cuda": where batches arrive; experimental')
    preload: tuple[str, ...] | None = _option(
        None, modules, "modules to import once for all workers of spawn or forkserver, as in a,b"
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = each.metadata["check"](each.name, getattr(self, each.name))
            setattr(self, each.name, value)
        if self.slot_bytes is not None:
            _check_slot(self.slot_bytes, self.ring_bytes)
        if self.max_workers is not None and self.max_workers < (self.min_workers or 0):
            raise ValueError(
                f"min_workers={self.min_workers} exceeds max_workers={self.max_workers}: lower the "
                "one, or raise the other"
            )
        if self.is_auto:
            require_component('num_workers="auto"', "autoscaling")
        if self.is_auto and self.seed_by == BY_WORKER:
            self.seed_by = "batch"  # `with_workers` refuses another one that is given

    @property
    def is_auto(self) -> bool:
        """True if the loader finds how many workers it needs."""
        return self.max_workers is not None

    @property
    def binds_late(self) -> bool:
        """True if a request is bound to a worker when it is placed, and not in turn."""
        return self.is_auto or self.assignment == DYNAMIC


def _check_slot(slot_bytes: int, ring_bytes: int | None) -> None:
    if ring_bytes is not None and slot_bytes > ring_bytes:
        raise ValueError(
            f"slot_bytes of {slot_bytes} exceeds ring_bytes of {ring_bytes}: raise ring_bytes to "
            f"at least {slot_bytes} or lower slot_bytes"
        )
    most_bytes = limits.total_bytes()
    if most_bytes is not None and slot_bytes > most_bytes:
        raise ValueError(
            f"slot_bytes of {slot_bytes} exceeds the memory of this machine or control group, "
            f"{most_bytes} bytes: lower slot_bytes to what a batch needs, or omit it"
        )


OPTIONS = {each.name: each for each in fields(Options)}


def options_of(function: str, given: Mapping[str, Any]) -> Options:
    """Make the record of the options that a function was given."""
    for name in given:
        if name not in OPTIONS:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return Options(**given)


def with_workers(num_workers: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """
    Settle what follows from `num_workers="auto"`, or from `max_workers`, for the other options.

    Returns num_workers too, the most that there may be if it is "auto".
    """
    options = dict(given)
    is_auto = isinstance(num_workers, str)
    if is_auto and num_workers != AUTO:
        raise TypeError(f'num_workers should be an int or "auto", but got {num_workers!r}')
    if not is_auto and options.get("max_workers") is None:
        return num_workers, options
    if options.get("seed_by", BY_BATCH) != BY_BATCH:
        raise ValueError(
            f'num_workers="auto" excludes seed_by={options["seed_by"]!r}: workers come and go, so '
            "random numbers must depend on the batch alone; omit seed_by"
        )
    if options.get("max_workers") is None:
        options["max_workers"] = max(_default_most(), options.get("min_workers") or 1)
    return (options["max_workers"] if is_auto else num_workers), options


def options_over(function: str, num_workers: Any, given: Mapping[str, Any]) -> tuple[Any, Options]:
    """Do both where loaders have a number: None retains it, "auto" begins with it."""
    if num_workers is not None and not isinstance(num_workers, str):
        raise TypeError(
            f'{function}() takes num_workers="auto" or None, but got {num_workers!r}: give a '
            "number to the loader, and max_workers for the most"
        )
    most, settled = with_workers(num_workers or 0, given)
    return most, options_of(function, settled)


def _default_most() -> int:
    """Count the workers that there may be by default: four for each core, from 4 to 32."""
    from shmloader.processes import scheduling  # only now: it imports torch

    return max(4, min(32, 4 * scheduling.allowed_cores(0)))


def most_workers(loader: Any, options: Options) -> int:
    """How many workers a loader has, or may have if it finds how many it needs."""
    if options.max_workers is not None and loader.num_workers > 0:
        return options.max_workers
    return int(loader.num_workers)


def replaces(options: Options) -> bool:
    """Returns True if workers that die or grow are replaced."""
    return options.restarts > 0 or options.worker_bytes is not None


def by_name(options: Options) -> dict[str, Any]:
    """Return options as keyword arguments; not by asdict(), which copies what it does not know."""
    return {name: getattr(options, name) for name in OPTIONS}


def takes_options(function: _Function) -> _Function:
    """Have inspect.signature() show a function's options instead of `**options`."""
    signature = inspect.signature(function)
    *named, _ = signature.parameters.values()
    signed: Any = function
    signed.__signature__ = with_options(signature.replace(parameters=named))
    return function


def with_options(signature: inspect.Signature) -> inspect.Signature:
    """Add the options to a signature that it has not, with their defaults and types."""
    named = [*signature.parameters.values()]
    named += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=Given.__annotations__[name].__forward_arg__,
        )
        for name, each in OPTIONS.items()
        if name not in signature.parameters
    ]
    return signature.replace(parameters=sorted(named, key=lambda each: each.kind))
