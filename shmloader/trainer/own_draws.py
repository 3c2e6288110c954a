"""What makes random numbers depend on the worker, although they are seeded by the batch."""

import dis
import functools
from types import CodeType, FunctionType, MethodType
from typing import Any

from shmloader.order.samplers import GENERATORS
from shmloader.samples.datasets import attributes_of, made_of


def describe(loader: Any) -> str:
    """
    Say what of a loader draws by worker, as far as its attributes show; "" if nothing does.

    No code of users' runs to find it.
    """
    for dataset in made_of(loader.dataset):
        for name, value in attributes_of(dataset):
            if issubclass(type(value), GENERATORS):
                return f"the dataset's attribute {name} is a generator of its own"
    return "worker_init_fn uses the worker's id" if _uses_its_id(loader.worker_init_fn) else ""


def _code_of(function: Any) -> tuple[CodeType | None, int]:
    """Return the code of a function, if it is Python's, and how many arguments it is given."""
    given = 0
    while True:
        if type(function) is functools.partial:
            given, function = given + len(function.args), function.func
        elif type(function) is MethodType:
            given, function = given + 1, function.__func__
        else:
            return (function.__code__ if type(function) is FunctionType else None), given


def _uses_its_id(function: Any) -> bool:
    """Returns True if a function's code reads the id that it is given, or asks for it."""
    code, place = _code_of(function)
    if code is None:
        return False
    words = "get_worker_info", *code.co_varnames[place : code.co_argcount][:1]
    read = (each.argval for each in dis.get_instructions(code))
    # From Python 3.13 on one instruction may read two variables.
    found = (each if isinstance(each, tuple) else (each,) for each in read)
    return any(word in each for each in found for word in words)
