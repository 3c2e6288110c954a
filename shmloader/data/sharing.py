"""`share()`: large lists and dicts of a dataset, put into shared memory in their places."""

import datetime
import decimal
import enum
import fractions
import itertools
import pathlib
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils.data import Dataset

from shmloader import log
from shmloader.data.mutations import changed_while_read
from shmloader.data.shared_dict import SharedDict
from shmloader.data.shared_list import SharedList

_MIN_BYTES = 1_000_000
_DEPTH = 6  # of objects inside of objects, from the dataset on
_FEW = 1000  # items of a container that is looked into for others
_SAMPLE, _PARTS = 50, 500  # items whose size is looked at; parts of all of those

# What a record may be made of: data alone, so that a copy is as good as the object.
_PLAIN = (
    bool, int, float, complex, str, bytes, bytearray, type(None), range, numpy.generic,
    numpy.ndarray, numpy.dtype, torch.Tensor, torch.dtype, pathlib.PurePath, datetime.date,
    datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, enum.Enum, uuid.UUID,
)  # fmt: skip
_CONTAINERS = (list, tuple, set, frozenset, dict)
# Records that two containers may both hold, to be changed through one and read through the other.
_CHANGEABLE = (list, dict, set, bytearray, numpy.ndarray, torch.Tensor)
# Objects of these are tools of a dataset, not parts of it: a vocabulary is looked up for each word.
_FOREIGN = frozenset(
    (
        "torch", "numpy", "pandas", "pyarrow", "transformers", "tokenizers", "sentencepiece",
        "spacy", "nltk", "sklearn", "scipy", "PIL", "cv2", "lightning", "pytorch_lightning",
        "accelerate",
    )
)  # fmt: skip


class Replaced(NamedTuple):
    """
    A list or dict that lies in shared memory now.

    Attributes:
        place: Where it is, as in "dataset.samples".
        records: Its length.
        bytes: What it takes.
    """

    place: str
    records: int
    bytes: int


class Left(NamedTuple):
    """
    A large list or dict that stayed what it was.

    Attributes:
        place: Where it is.
        reason: Why.
    """

    place: str
    reason: str


class Sharing(NamedTuple):
    """
    What `share()` did; `str()` of it is one line.

    Attributes:
        replaced: The lists and dicts that lie in shared memory now.
        left: Large ones that could not be replaced.
    """

    replaced: tuple[Replaced, ...]
    left: tuple[Left, ...]

    def __str__(self) -> str:
        done = [
            f"{each.place} ({each.records} records, {each.bytes / 1e6:.1f} MB)"
            for each in self.replaced
        ]
        text = f"shared {', '.join(done)}" if done else "nothing to share"
        kept = [f"{each.place} ({each.reason})" for each in self.left]
        return f"{text}; left {', '.join(kept)}" if kept else text


def share(dataset: Any, *, min_bytes: int = _MIN_BYTES) -> Sharing:
    """
    Put the large lists and dicts of a dataset into shared memory, each in its place.

    Looks into the attributes of the dataset and of what it wraps, such as `Subset.dataset`, and
    replaces a list by a `SharedList`, a dict with ints or strings as keys by a `SharedDict`. One
    that two attributes refer to is replaced once. Call it before the loader starts its workers.

    Left as they are: what the methods of the dataset change while it is read, or whose records they
    change, as far as their source shows; subclasses of list and dict, other than defaultdict; and
    what holds objects that are not data. Not looked into are tools such as tokenizers, networks and
    loggers. The logger "shmloader" is told what was done, in one line.

    Args:
        dataset: Any object with attributes; they are changed.
        min_bytes: Smaller lists and dicts are not worth it; estimated from some of their items.

    Returns:
        What was replaced, and what was left and why.

    Raises:
        OutOfSharedMemory: There is no room. What was replaced by then stays so.
        TypeError: It has no attributes, such as a list.
    """
    if not hasattr(dataset, "__dict__"):
        kind = type(dataset).__name__
        raise TypeError(f"a {kind} has no attributes to share: give SharedList a list itself")
    walk = _Walk(min_bytes)
    walk.look_at(dataset, "dataset", 0)
    walk.replace()
    done = Sharing(tuple(walk.replaced), tuple(walk.left))
    log.tell("%s", done)
    return done


class _Found(NamedTuple):
    """A large list or dict, and one place where it is."""

    thing: Any
    name: Any
    value: Any
    spot: str
    reason: str | None  # why it has to stay


class _Walk:
    """Goes through a dataset's attributes, each object once."""

    def __init__(self, min_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._seen: dict[int, Any] = {}  # objects that were looked at, kept so that ids stay theirs
        self._found: list[_Found] = []
        self._made: dict[int, Any] = {}  # id of what was found -> what replaces it
        self.replaced: list[Replaced] = []
        self.left: list[Left] = []

    def look_at(self, thing: Any, place: str, depth: int, reason: str | None = None) -> None:
        """
        Look for large containers below an object.

        Args:
            reason: Why those have to stay; None if each may be replaced.
        """
        if id(thing) in self._seen or depth > _DEPTH:
            return
        self._seen[id(thing)] = thing
        for name, value, holder in _members(thing):
            spot = f"{place}.{name}" if holder is None else f"{place}[{name!r}]"
            if isinstance(value, list | dict):
                self._look_at_container(thing, name, value, spot, depth, reason)
            elif isinstance(value, numpy.ndarray) and value.dtype.hasobject:
                if value.nbytes >= self._min_bytes:
                    self.left.append(Left(spot, "an array of objects: make it a list first"))
            elif _is_worth_a_look(value):
                self.look_at(value, spot, depth + 1)

    def _look_at_container(
        self, thing: Any, name: Any, value: Any, spot: str, depth: int, reason: str | None
    ) -> None:
        reason = reason or _change_of(thing, name)
        if _estimated_bytes(value) < self._min_bytes or _is_group(value):
            if len(value) <= _FEW:
                self.look_at(value, spot, depth + 1, reason)
            return
        self._found.append(_Found(thing, name, value, spot, reason))

    def replace(self) -> None:
        """Replace what was found and may be, in all of its places."""
        changed = {id(each.value): each for each in self._found if each.reason is not None}
        records = {
            id(record): each.reason
            for each in changed.values()
            for record in _records_in(each.value)
            if isinstance(record, _CHANGEABLE)
        }
        for thing, name, value, spot, own_reason in self._found:
            if id(value) in self._made:
                _put(thing, name, self._made[id(value)])
                continue
            reason = _reason_against(thing, value) or own_reason
            if reason is None and id(value) in changed:
                reason = changed[id(value)].reason
            if reason is None and records:
                shared = (records.get(id(record)) for record in _records_in(value))
                reason = next(filter(None, shared), None)
            if reason is None:
                reason = self._replace(thing, name, value, spot)
            if reason is not None:
                self.left.append(Left(spot, reason))

    def _replace(self, thing: Any, name: Any, value: Any, spot: str) -> str | None:
        """Replace a container in one of its places. Returns why that cannot be."""
        try:
            made = _shared(value)
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if len(made) != len(value):
            return "it changed while it was read"
        self._made[id(value)] = made
        _put(thing, name, made)
        self.replaced.append(Replaced(spot, len(made), made.nbytes))
        return None


def _records_in(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _members(thing: Any) -> list[tuple[Any, Any, Any]]:
    """List what an object refers to: name, value, and None for attributes."""
    if isinstance(thing, dict):
        return [(key, value, thing) for key, value in thing.items()]
    if isinstance(thing, list | tuple):
        return [(place, value, thing) for place, value in enumerate(thing)]
    return [(name, value, None) for name, value in vars(thing).items()]


def _is_worth_a_look(value: Any) -> bool:
    """Returns True for an object with attributes of its own that may be a part of a dataset."""
    if isinstance(value, list | tuple | dict):
        return len(value) <= _FEW
    if isinstance(value, Dataset | SimpleNamespace):
        return True
    if isinstance(value, type | SharedList | SharedDict | torch.nn.Module):
        return False
    package = type(value).__module__.partition(".")[0]
    is_a_tool = package in _FOREIGN or package in sys.stdlib_module_names
    return hasattr(value, "__dict__") and (package == "__main__" or not is_a_tool)


def _is_group(value: Any) -> bool:
    """Returns True for a few large parts, such as the lists in a file of annotations."""
    if len(value) > _FEW:
        return False
    parts = value.values() if isinstance(value, dict) else value
    return any(isinstance(part, list | dict) and len(part) > _FEW for part in parts)


def _put(thing: Any, name: Any, made: Any) -> None:
    if isinstance(thing, list | dict):
        thing[name] = made
    else:
        vars(thing)[name] = made


def _change_of(thing: Any, name: Any) -> str | None:
    """Say which method changes an attribute; None if none does, or if it is an item."""
    if isinstance(thing, list | tuple | dict):
        return None
    method = changed_while_read(type(thing)).get(name)
    return None if method is None else f"{type(thing).__name__}.{method} changes it"


def _reason_against(thing: Any, value: Any) -> str | None:
    """Say why a list or dict has to stay; None if it may be replaced."""
    if isinstance(thing, tuple):
        return "it lies in a tuple"
    if type(value) not in (list, dict, defaultdict):
        return f"a {type(value).__name__} may do more than a {type(value).__mro__[1].__name__}"
    if isinstance(value, dict):
        others = {type(key) for key in value} - {int, str}
        if others:
            return f"its keys are of type {_named(others)}, not int or str"
    strange = _strange_types(_records_in(value))
    return f"it holds objects of type {_named(strange)}" if strange else None


def _strange_types(items: Iterable[Any]) -> set[type]:
    """Find the types of items that are not data: of all items, and of the parts of some."""
    first: list[Any] = []
    kinds: set[type] = set()
    for item in items:
        if len(first) < _SAMPLE:
            first.append(item)
        kinds.add(type(item))
    parts = itertools.islice(_parts(first), _PARTS)
    return {kind for kind in (*kinds, *map(type, parts)) if not _is_data(kind)}


def _is_data(kind: type) -> bool:
    if kind in _CONTAINERS or issubclass(kind, _PLAIN):
        return True
    return is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _parts(items: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """Yield the items, and what they hold."""
    for item in items:
        yield item
        if depth < _DEPTH and isinstance(item, _CONTAINERS):
            yield from _parts(item, depth + 1)
            if isinstance(item, dict):
                yield from _parts(item.values(), depth + 1)


def _estimated_bytes(value: Any) -> float:
    """Estimate what a container takes with all in it, from items that lie evenly in it."""
    if not value:
        return 0
    step = -(-len(value) // _SAMPLE) | 1  # odd: items may alternate
    items = value.items() if isinstance(value, dict) else value
    some = list(itertools.islice(items, 0, None, step))
    parts = itertools.islice(_parts(some), _PARTS * _SAMPLE)
    return sys.getsizeof(value) + sum(map(_size_of, parts)) * len(value) / len(some)


def _size_of(part: Any) -> int:
    if isinstance(part, numpy.ndarray | torch.Tensor):
        return part.nbytes
    return sys.getsizeof(part, 64)


def _shared(value: Any) -> Any:
    if isinstance(value, defaultdict):
        return SharedDict(value, default_factory=value.default_factory)
    return SharedDict(value) if isinstance(value, dict) else SharedList(value)


def _named(kinds: set[type]) -> str:
    return " and ".join(sorted(kind.__name__ for kind in kinds))
