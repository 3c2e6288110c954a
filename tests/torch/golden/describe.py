"""Turn a batch into plain tuples that are equal if and only if the batches are, bit for bit."""

import dataclasses
from collections import deque
from collections.abc import Mapping

import numpy as np
import torch


def describe(value):
    """
    Return nested tuples of the types, dtypes, shapes, strides and bytes of a batch.

    The result shares no memory with `value`, so it stays as it is when a slot is written again.
    """
    return (qualified_name(type(value)), *parts_of(value))


def qualified_name(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def parts_of(value):
    for kinds, parts in PARTS:
        if isinstance(value, kinds):
            return parts(value)
    return fields_of(value) if dataclasses.is_dataclass(value) else (value,)


def tensor_parts(tensor):
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.requires_grad, data


def array_parts(array):
    data = array.tolist() if array.dtype.hasobject else array.tobytes()
    return array.dtype.str, array.shape, array.strides, array.flags.writeable, data


def mapping_parts(mapping):
    return tuple((key, describe(item)) for key, item in mapping.items())


def sequence_parts(sequence):
    return tuple(describe(item) for item in sequence)


def set_parts(items):
    return tuple(sorted(map(repr, items)))


def fields_of(record):
    return mapping_parts(vars(record))


PARTS = (
    (torch.Tensor, tensor_parts),
    (np.ndarray, array_parts),
    (Mapping, mapping_parts),
    ((list, tuple, deque), sequence_parts),
    ((set, frozenset), set_parts),
)


def first_difference(expected, actual, path="run"):
    """Return where two descriptions differ first, as text, or None if they are equal."""
    if expected == actual:
        return None
    if not same_shape(expected, actual):
        return f"{path}: expected {expected!r}, got {actual!r}"
    keys = expected if isinstance(expected, dict) else range(len(expected))
    found = (first_difference(expected[key], actual[key], f"{path}[{key!r}]") for key in keys)
    return next(filter(None, found))


def same_shape(expected, actual):
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, dict):
        return expected.keys() == actual.keys()
    return isinstance(expected, (list, tuple)) and len(expected) == len(actual)
