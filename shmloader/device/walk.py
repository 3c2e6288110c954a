"""
Walks over batches outside of a slot: as the worker's encoder sees them, for loaders without
workers, and through anything, to find what user code has made on the device.
"""

import copyreg
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from shmloader.core import is_plain
from shmloader.errors import UnsendableBatch

_Move = Callable[[torch.Tensor], Any]


def moved(batch: Any, move: _Move) -> Any:
    """
    Make a batch anew with other tensors in it, as one from a worker is made.

    Args:
        move: Takes each plain CPU tensor of the batch's containers and dataclasses, and returns
            what stands in its place. All else stays the same object.
    """
    try:
        return _Walk(move).moved(batch)
    except RecursionError:
        limit = sys.getrecursionlimit()
        raise UnsendableBatch(
            "the batch cannot be moved to a device: it is nested deeper than Python's recursion "
            f"limit of {limit} allows. Return tensors in few containers"
        ) from None


class _Walk:
    def __init__(self, move: _Move) -> None:
        self._move = move
        self._made: dict[int, Any] = {}  # by id of the old object, which the batch keeps alive

    def moved(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._once(value, self._move) if is_plain(value) else value
        if kind is list:
            return self._once(value, lambda items: [self.moved(item) for item in items])
        if kind is tuple:
            return self._once(value, lambda items: tuple(self.moved(item) for item in items))
        if kind is dict:
            return self._once(
                value, lambda pairs: {name: self.moved(item) for name, item in pairs.items()}
            )
        return self._once(value, self._rebuilt) if _is_container(kind) else value

    def _once(self, value: Any, make: Callable[[Any], Any]) -> Any:
        if id(value) not in self._made:
            self._made[id(value)] = make(value)
        return self._made[id(value)]

    def _rebuilt(self, value: Any) -> Any:
        """Take a container of another class apart as pickle does, and build it again."""
        parts = value.__reduce_ex__(4)
        if type(parts) is not tuple:
            return value
        build, arguments, state, items, pairs, setter = (*parts, None, None, None, None)[:6]
        made = build(*self.moved(arguments))
        for item in items or ():
            made.append(self.moved(item))
        for name, item in pairs or ():
            made[name] = self.moved(item)
        if state is not None:
            (setter or _set_state)(made, self.moved(state))
        return made


def _set_state(made: Any, state: Any) -> None:
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    slots = None
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    if state:
        made.__dict__.update(state)
    for name, item in (slots or {}).items():
        object.__setattr__(made, name, item)


def _is_container(kind: type) -> bool:
    """As `is_reducible` in core/encode.pyx."""
    extra: Any = ForkingPickler  # its table of reducers is in no stub
    if issubclass(kind, PackedSequence):
        return False
    return (
        (issubclass(kind, (tuple, Mapping, Sequence)) and not issubclass(kind, (str, bytes)))
        or dataclasses.is_dataclass(kind)
    ) and not (kind in copyreg.dispatch_table or kind in extra._extra_reducers)


def tensors_in(value: Any, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield the strided tensors on a device that a value holds, however deep, each once."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, str | bytes | int | float | type):
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            if hasattr(found, "__tensor_flatten__"):
                # Its own storage is none, and few such classes know record_stream().
                waiting += [getattr(found, name) for name in found.__tensor_flatten__()[0]]
            elif found.device == device:
                yield from _strided_parts(found)
        elif isinstance(found, Mapping):
            waiting += [*found.values(), *_vars_of(found)]
        elif isinstance(found, list | tuple | set | frozenset):
            waiting += [*found, *_vars_of(found)]
        elif not isinstance(found, FunctionType | ModuleType):
            waiting += _vars_of(found)


def _vars_of(value: Any) -> list[Any]:
    """List what the attributes of an object are, those in slots included."""
    found = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if hasattr(value, name):
                found.append(getattr(value, name))
    return found


def _strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.is_quantized:
        # torch notes no stream for one, but for any tensor in its memory.
        return [
            torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        ]
    return [tensor]
