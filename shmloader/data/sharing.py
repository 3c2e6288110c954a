"""`share()`: named lists and dicts of a dataset, put into shared memory in their places."""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from shmloader import log
from shmloader.setup import requirements

_IS_HERE = requirements.LACKING is None
if TYPE_CHECKING or _IS_HERE:
    from shmloader.data.shared_dict import SharedDict
    from shmloader.data.shared_list import SharedList


class Replaced(NamedTuple):
    """
    A list or dict that lies in shared memory now.

    Attributes:
        place: Where it is, as in "samples" or "coco.annotations".
        records: Its length.
        bytes: What it takes.
    """

    place: str
    records: int
    bytes: int


class Sharing(NamedTuple):
    """
    What `share()` did; `str()` of it is one line.

    Attributes:
        replaced: The lists and dicts that lie in shared memory now.
    """

    replaced: tuple[Replaced, ...]

    def __str__(self) -> str:
        return "shared " + ", ".join(
            f"{each.place} ({each.records} records, {each.bytes / 1e6:.1f} MB)"
            for each in self.replaced
        )


def share(dataset: Any, *places: str) -> Sharing:
    """
    Move lists and dicts of a dataset into shared memory.

    A list is replaced by a `SharedList`, a dict with ints or strings as keys by a `SharedDict`.
    These cannot be changed, and each read makes a new record, so do not name objects that your code
    changes. Other attributes of the same object that are the same list are replaced too. Call it
    before the loader starts its workers. The logger "shmloader" receives one line on what was done.

    Args:
        dataset: Any object with attributes; they are changed.
        places: What to share: "samples" is `dataset.samples`, "coco.annotations" is
            `dataset.coco.annotations`, or item "annotations" if `coco` is a dict.

    Returns:
        What was replaced; nothing on systems without shared-memory slots.

    Raises:
        ValueError: No name is given.
        AttributeError: The dataset has no attribute of such a name.
        TypeError: The object is neither a list nor a dict, or a key of it is neither int nor str.
        OutOfSharedMemory: Memory is short. Nothing is replaced then.
    """
    if not places:
        raise ValueError('name what to share, as in share(dataset, "samples")')
    found = [_find(dataset, place) for place in places]
    if not _IS_HERE:
        log.tell("shared nothing: %s", requirements.LACKING)
        return Sharing(())
    by_id = {id(each.value): each.value for each in found}
    made = {number: _shared(value) for number, value in by_id.items()}
    replaced = []
    for each in found:
        shared = made[id(each.value)]
        members = each.owner if isinstance(each.owner, list | dict) else vars(each.owner)
        for name in each.names:
            members[name] = shared
        replaced.append(Replaced(each.place, len(shared), shared.nbytes))
    done = Sharing(tuple(replaced))
    log.tell("%s", done)
    return done


class _Reference(NamedTuple):
    """A list or dict, the object that refers to it, and by which names."""

    place: str
    owner: Any
    names: list[Any]
    value: Any


def _find(dataset: Any, place: str) -> _Reference:
    *path, last = place.split(".")
    owner = dataset
    for part in path:
        owner = _member(owner, part, place)
    value = _member(owner, last, place)
    if type(value) not in (list, dict, defaultdict):
        kind = type(value).__name__
        raise TypeError(f"{place} is a {kind}: share() replaces lists, dicts and defaultdicts")
    if isinstance(owner, tuple):
        raise TypeError(f"{place} is in a tuple, which cannot be changed: make the tuple a list")
    return _Reference(place, owner, [n for n, other in _members(owner) if other is value], value)


def _member(owner: Any, name: str, place: str) -> Any:
    for found, value in _members(owner):
        if name == str(found):
            return value
    raise AttributeError(f"there is no {place}: a {type(owner).__name__} has no {name!r}")


def _members(owner: Any) -> Iterable[tuple[Any, Any]]:
    """List what an object refers to, by name, key or position."""
    if isinstance(owner, dict):
        return owner.items()
    if isinstance(owner, list | tuple):
        return enumerate(owner)
    return vars(owner).items() if hasattr(owner, "__dict__") else ()


def _shared(value: Any) -> Any:
    if isinstance(value, defaultdict):
        return SharedDict(value, default_factory=value.default_factory)
    return SharedDict(value) if isinstance(value, dict) else SharedList(value)
