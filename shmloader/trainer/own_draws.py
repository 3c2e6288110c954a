"""What makes random numbers depend on the worker, although they are seeded by the batch."""

import dis
import random
from typing import Any

import numpy
import torch

from shmloader.trainer.taken import attributes_of

_GENERATORS = (
    torch.Generator,
    random.Random,
    numpy.random.Generator,
    numpy.random.RandomState,
)


def describe(loader: Any) -> str:
    """
    Say what of a loader draws by worker, as far as its attributes show; "" if nothing does.

    No code of users' runs to find it.
    """
    for name, value in attributes_of(loader.dataset):
        if issubclass(type(value), _GENERATORS):
            return f"the dataset's attribute {name} is a generator of its own"
    if _uses_its_id(loader.worker_init_fn):
        return "worker_init_fn uses the worker's id"
    return ""


def _uses_its_id(function: Any) -> bool:
    """Returns True if a Python function reads its first argument."""
    code = getattr(function, "__code__", None) if type(function) is type(describe) else None
    if code is None or not code.co_argcount:
        return False
    name = code.co_varnames[0]
    return any(
        name == read.argval or (isinstance(read.argval, tuple) and name in read.argval)
        for read in dis.get_instructions(code)
    )
