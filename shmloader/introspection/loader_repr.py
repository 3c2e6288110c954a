"""
One line that says what a loader is: its class, its dataset, and the options that differ.

A debugger or a notebook asks for it at any moment, so it runs no code of the user's, which may fail
or take long: attributes are read where they are kept, and objects are named by their types.
"""

import types
from collections.abc import Iterator, Mapping
from inspect import Parameter, getattr_static
from typing import Any

from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    SequentialSampler,
    default_collate,
    default_convert,
)

from shmloader.options.options import Device

# Shown whatever their values are: how many samples at once, fetched by how many processes.
_ALWAYS = ("batch_size", "num_workers")
_PLAIN = (bool, int, float, str, types.NoneType)


def describe(loader: Any, name: str, parameters: Mapping[str, Parameter]) -> str:
    """
    Describe a loader, even one of which attributes are missing; never raises.

    One line, such as "DataLoader(range of 60000, batch_size=64, num_workers=4)", by the name and
    the parameters of its class.
    """
    try:
        return f"{name}({', '.join(_parts(vars(loader), parameters))})"
    except Exception:
        # Such as a class with slots instead of attributes: a traceback has to show it all the same.
        return object.__repr__(loader)


def _parts(attributes: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Iterator[str]:
    if "dataset" in attributes:
        yield _shown(attributes["dataset"])
    is_stream = issubclass(type(attributes.get("dataset")), IterableDataset)
    for name, parameter in parameters.items():
        # torch keeps the context behind a property, which a subclass may replace.
        value = attributes.get(name, attributes.get(f"_DataLoader__{name}", parameter.default))
        is_made = is_stream or type(value) in (SequentialSampler, BatchSampler)  # by torch
        if name == "dataset" or (name in ("sampler", "batch_sampler") and is_made):
            continue
        is_always = name in _ALWAYS and name in attributes
        if is_always or not _is_usual(name, value, parameter.default):
            yield f"{name}={_shown(value)}"


def _is_usual(name: str, value: Any, default: Any) -> bool:
    if type(value) in _PLAIN and type(default) in _PLAIN:
        return bool(value == (2 if name == "prefetch_factor" and value else default))
    return value is default or value is default_collate or value is default_convert


def _shown(value: Any) -> str:
    """Name a value: a number or a text as it is, a function by its name, others by their type."""
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, Device):
        return repr(value.name)
    if isinstance(value, types.FunctionType):
        return value.__name__
    # A length of Python's own classes is at hand; others may be the user's code.
    counts = getattr_static(type(value), "__len__", None)
    length = f" of {len(value)}" if isinstance(counts, types.WrapperDescriptorType) else ""
    return type(value).__name__ + length
