"""Which datasets one is made of, as far as its attributes show; no code of users' runs."""

from types import GetSetDescriptorType
from typing import Any

from torch.utils.data import Dataset

_MANY = 1000  # a longer list holds data
_MRO, _DICT = type.__dict__["__mro__"], type.__dict__["__dict__"]


def made_of(dataset: Any) -> list[Any]:
    """List a dataset and those that it wraps, or holds in attributes and lists, each once."""
    found, seen = [dataset], {id(dataset)}
    for outer in found:  # which grows
        for name, value in attributes_of(outer):
            new = [each for each in _datasets_in(name, value) if id(each) not in seen]
            found += new
            seen.update(map(id, new))
        if len(found) > _MANY:
            break
    return found


def _datasets_in(name: Any, value: Any) -> list[Any]:
    if type(value) in (list, tuple, dict) and len(value) <= _MANY:
        inner = value.values() if type(value) is dict else value
        return list({id(each): each for each in inner if issubclass(type(each), Dataset)}.values())
    is_wrapped = type(name) is str and name == "dataset"
    return [value] if is_wrapped or issubclass(type(value), Dataset) else []


def attributes_of(value: Any) -> list[tuple[Any, Any]]:
    """List what an object has in its own dictionary, without asking its class."""
    for kind in _MRO.__get__(type(value)):
        descriptor = _DICT.__get__(kind).get("__dict__")
        if descriptor is not None:
            is_pythons = type(descriptor) is GetSetDescriptorType
            own = descriptor.__get__(value) if is_pythons else None
            return list(own.items()) if type(own) is dict else []
    return []
