"""Arrays of JAX on the CPU: as ndarrays over the same memory, and such arrays over the slot."""

import importlib
from typing import Any

import numpy

from shmloader.core.kinds import Reducer

_jax: Any = importlib.import_module("jax")


def reducer_of(kind: type) -> Reducer | None:
    """Find how arrays are taken apart."""
    return _reduce if kind.__name__ == "ArrayImpl" and issubclass(kind, _jax.Array) else None


def _reduce(array: Any) -> Any:
    if array.weak_type or array.dtype.num >= 256 or len(array.devices()) > 1:
        return None
    return _build, (numpy.asarray(array),)


def _build(plain: Any) -> Any:
    return _jax.dlpack.from_dlpack(plain)
