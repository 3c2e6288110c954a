"""
One line that says what a loader is: its class, its dataset, and the options that differ.

A debugger or a notebook asks for it at any moment, so it runs no code of the user's, which may fail
or take long: attributes are read where they are kept, lengths are taken only from classes that have
them at hand, and objects are named by their types.
"""

import contextlib
import inspect
import types
from collections.abc import Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import Any

import numpy
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

# Shown whatever their values are: how many samples at once, fetched by how many processes.
_ALWAYS = ("batch_size", "num_workers")
# Values that torch sets where the user gave none.
_FILLED_IN = {"prefetch_factor": (2,), "collate_fn": (default_collate, default_convert)}
_PLAIN = (bool, int, float, str, types.NoneType)
_LONGEST_TEXT = 40
_NOTHING = object()


def describe(loader: Any, name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """
    Describe a loader, even one of which attributes are missing; never raises.

    Args:
        name: Of its class.
        parameters: Those of its class that may be shown, in their order, with their defaults.

    Returns:
        One line, such as "DataLoader(TensorDataset of 60000, batch_size=64, num_workers=4)".
    """
    try:
        attributes = vars(loader)
        dataset = [_sized(attributes["dataset"])] if "dataset" in attributes else []
        options = [f"{option}={value}" for option, value in _options(attributes, parameters)]
        return f"{name}({', '.join([*dataset, *options])})"
    except Exception:
        # Such as a class with slots instead of attributes: a traceback has to show it all the same.
        return object.__repr__(loader)


def _options(
    attributes: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> Iterator[tuple[str, str]]:
    """List the options to be shown, each with its value in words."""
    has_own_batches = (
        attributes.get("batch_size") is None and attributes.get("batch_sampler") is not None
    )
    for name, parameter in parameters.items():
        value = attributes.get(name, _NOTHING)
        if name == "multiprocessing_context":
            # torch keeps it behind a property, which a subclass may replace.
            value = attributes.get(f"_DataLoader__{name}", _NOTHING)
        if name == "batch_size" and has_own_batches:
            yield "batch_sampler", _sized(attributes["batch_sampler"])
        elif name in ("dataset", "batch_sampler"):
            continue
        elif name in ("shuffle", "sampler"):
            if name == _order_of(attributes):
                yield name, "True" if name == "shuffle" else _sized(value)
        elif value is not _NOTHING and (name in _ALWAYS or not _is_default(name, value, parameter)):
            yield name, _shown(value)


def _order_of(attributes: Mapping[str, Any]) -> str | None:
    """Name the option that says how samples are drawn; None for the default, in their order."""
    dataset, sampler = attributes.get("dataset"), attributes.get("sampler")
    if sampler is None or issubclass(type(dataset), IterableDataset):
        return None
    over_all = type(sampler) in (SequentialSampler, RandomSampler) and (
        vars(sampler).get("data_source") is dataset
    )
    if not over_all:
        return "sampler"
    if type(sampler) is SequentialSampler:
        return None
    draws = vars(sampler)
    is_plain = draws.get("replacement") is False and draws.get("_num_samples") is None
    return "shuffle" if is_plain else "sampler"


def _is_default(name: str, value: Any, parameter: inspect.Parameter) -> bool:
    for default in (parameter.default, *_FILLED_IN.get(name, ())):
        if value is default:
            return True
        if type(value) in _PLAIN and type(default) in _PLAIN and value == default:
            return True
    return False


def _shown(value: Any) -> str:
    """Name a value: a number or a text as it is, a function by its name, others by their type."""
    if issubclass(type(value), numpy.generic):
        value = value.item()
    if type(value) in _PLAIN:
        text = repr(value)
        return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return value.__name__
    if issubclass(type(value), BaseContext):
        return repr(value.get_start_method(allow_none=True))  # otherwise it would choose one
    return type(value).__name__


def _sized(thing: Any) -> str:
    """Name a thing by its type, with its length if that is known."""
    length = None
    with contextlib.suppress(Exception):  # such as an array without dimensions
        length = _length_of(thing)
    return type(thing).__name__ + (f" of {length}" if length is not None else "")


def _length_of(thing: Any) -> int | None:
    """Look up a length; None if only code written in Python, which may be the user's, knows it."""
    kind = type(thing)
    if kind is TensorDataset:
        thing = vars(thing)["tensors"][0]
    elif kind is Subset:
        return _length_of(vars(thing)["indices"])
    elif kind is ConcatDataset:
        length: int = vars(thing)["cumulative_sizes"][-1]
        return length
    if type(thing) is Tensor:
        return thing.shape[0]
    counts = inspect.getattr_static(type(thing), "__len__", None)
    return len(thing) if isinstance(counts, types.WrapperDescriptorType) else None
