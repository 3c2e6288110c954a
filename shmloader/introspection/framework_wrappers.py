"""
What frameworks make of a loader: objects that hold it, and may be a batch ahead of the loop.

Accelerate's prepared loaders fetch the next batch before they hand one out, to know the last one.
So the place of the loop is one delivery behind that of the loader inside. Lightning counts batches,
and goes on to its next epoch without asking a loader for the end of one.
"""

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch.utils.data

_DEPTH = 4  # how far a loader is looked for inside of what a framework made of it
_MANY = 1000  # a longer list or dict holds data
_COUNTS = ("lightning.pytorch", "pytorch_lightning")  # followed by the module that asks for states


class HeldLoader(NamedTuple):
    """A loader in an object."""

    loader: Any  # a torch.utils.data.DataLoader
    holders: tuple[Any, ...]  # the objects on the way to it, from the outermost one


def held_in(value: Any) -> list[HeldLoader]:
    """List the loaders that an object is or holds in attributes, lists and dicts, each once."""
    found: dict[int, HeldLoader] = {}
    for each in _walk(value, (), _DEPTH, set()):
        found.setdefault(id(each.loader), each)
    return list(found.values())


def _walk(value: Any, holders: tuple[Any, ...], depth: int, seen: set[int]) -> Iterator[HeldLoader]:
    if id(value) in seen:
        return
    seen.add(id(value))
    # Of its real type: frameworks' proxies claim to be loaders and are none.
    if issubclass(type(value), torch.utils.data.DataLoader):
        yield HeldLoader(value, holders)
    if depth > 0:
        for part in _parts(value):
            yield from _walk(part, (*holders, value), depth - 1, seen)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= _MANY else ()
    if isinstance(value, (list, tuple)):
        return value if len(value) <= _MANY else ()
    if isinstance(value, torch.utils.data.Dataset | torch.Tensor | torch.nn.Module | type):
        return ()
    return [part for name, part in getattr(value, "__dict__", {}).items() if name != "dataset"]


def is_ahead(holders: tuple[Any, ...]) -> bool:
    """Returns True if a batch was fetched ahead of the loop; TypeError if how many is unknown."""
    return any(_looks_ahead(holder) for holder in holders)


def counted_by(caller: FrameType, loader: Any) -> int | None:
    """How many batches Lightning takes of an epoch, if it is the caller; otherwise None."""
    module = caller.f_globals.get("__name__", "")
    if module not in [f"{each}.utilities.combined_loader" for each in _COUNTS]:
        return None
    try:
        return len(loader)
    except Exception:
        return None  # then it fetches ahead, and has come to the end


def set_epoch(holders: tuple[Any, ...], epoch: int) -> None:
    """Have Accelerate's loaders count on from an epoch, which they tell the sampler at iter()."""
    for holder in holders:
        if _is_accelerates(holder, "DataLoaderShard", "DataLoaderDispatcher"):
            holder.set_epoch(epoch)


def _looks_ahead(holder: Any) -> bool:
    if not _is_accelerates(holder, "DataLoaderDispatcher"):
        return _is_accelerates(holder, "DataLoaderShard")
    ranks = holder.state.num_processes
    if ranks > 1:
        raise TypeError(
            f"{type(holder).__name__} reads on rank 0 for all {ranks} ranks, up to "
            f"{2 * ranks - 1} batches ahead of the loop, so the loop's position is unknown: "
            "prepare the loader with dispatch_batches=False"
        )
    return True


def _is_accelerates(holder: Any, *names: str) -> bool:
    """Returns True if an object is of one of Accelerate's classes, which need not be imported."""
    module = sys.modules.get("accelerate.data_loader")
    return module is not None and issubclass(type(holder), tuple(getattr(module, n) for n in names))
