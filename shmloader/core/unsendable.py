"""Which leaf of a batch no pickle can take to another process: for messages."""

import functools
import itertools
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from shmloader.core import pickling
from shmloader.core._core import DEPTH_MAX
from shmloader.errors import attempt

_STEPS_SHOWN = 8  # of a path, at its begin and at its end
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80  # of a key


def find_unsendable(
    batch: Any, name: str = "batch", values_alone: bool = False
) -> tuple[str, Any] | None:
    """
    Find the first leaf of a batch that is nested too deep or cannot be pickled.

    Args:
        name: What the batch is called.
        values_alone: As of `pickling.Reducers`.

    Returns:
        (path, leaf), the path written as Python would reach it, the middle of a long one left out;
        or None.
    """
    for steps, value in _walk(batch, name):
        is_too_deep = len(steps) > DEPTH_MAX and _children(value)
        if is_too_deep or not _is_sendable(value, values_alone):
            return _path_of(steps), value
    return None


def find_deepest(batch: Any, name: str = "batch") -> tuple[str, Any]:
    """Find the leaf that is nested deepest; its path and itself, as `find_unsendable`."""
    deepest: list[str] = []
    leaf = batch
    for steps, value in _walk(batch, name):
        if len(steps) > len(deepest):
            deepest, leaf = steps.copy(), value
    return _path_of(deepest), leaf


def _walk(batch: Any, name: str) -> Iterator[tuple[list[str], Any]]:
    """Yield each object of a batch once, those inside it first, with the steps that lead to it."""
    # Not by recursion: a batch that is nested too deep is one of those that are looked at.
    steps, seen = [name], {id(batch): batch}
    around = [(batch, iter(_children(batch)))]
    while around:
        value, children = around[-1]
        for step, child in children:
            if id(child) not in seen:
                seen[id(child)] = child
                inside = _children(child) if len(steps) < DEPTH_MAX else []
                steps.append(step)
                around.append((child, iter(inside)))
                break
        else:
            yield steps, value
            around.pop()
            steps.pop()


def _path_of(steps: list[str]) -> str:
    if len(steps) <= 2 * _STEPS_SHOWN:
        return "".join(steps)
    return "".join([*steps[:_STEPS_SHOWN], "...", *steps[-_STEPS_SHOWN:]])


def _children(value: Any) -> list[tuple[str, Any]]:
    steps, _ = attempt(functools.partial(_steps_of, value))
    return steps or []  # it is a leaf then


def _steps_of(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        pairs = itertools.islice(value.items(), len(value))  # a user's own may have no end
        return [(f"[{_SHORT.repr(key)}]", child) for key, child in pairs]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return [(f"[{index}]", child) for index, child in zip(range(len(value)), value)]  # noqa: B905
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return []


def _is_sendable(value: Any, values_alone: bool) -> bool:
    reducers = pickling.Reducers(values_alone)
    reducers[torch.UntypedStorage] = functools.partial(_reduce_storage, values_alone=values_alone)
    _, error = attempt(functools.partial(pickling.dumps, value, reducers))
    return error is None


def _reduce_storage(storage: torch.UntypedStorage, values_alone: bool) -> Any:
    """Take a storage of the CPU for a leaf: those never fail."""
    if storage.device.type == "cpu":
        return pickling.leaf, (0,)
    return pickling.reduce_storage(storage, values_alone)
