"""What makes random numbers depend on the worker, although they are seeded by the batch."""

import dis
import inspect
from types import CodeType, FunctionType
from typing import Any

from shmloader.order.samplers import GENERATORS
from shmloader.trainer.taken import attributes_of


def describe(loader: Any) -> str:
    """
    Say what of a loader draws by worker, as far as its attributes show; "" if nothing does.

    No code of users' runs to find it.
    """
    for name, value in attributes_of(loader.dataset):
        if issubclass(type(value), GENERATORS):
            return f"the dataset's attribute {name} is a generator of its own"
    if _uses_its_id(loader.worker_init_fn):
        return "worker_init_fn uses the worker's id"
    functions = {"worker_init_fn": loader.worker_init_fn}
    for name in ("__getitem__", "__getitems__"):
        functions[f"the dataset's {name}"] = inspect.getattr_static(loader.dataset, name, None)
    asking = (name for name, function in functions.items() if _asks_who_it_is(function))
    return next((f"{name} calls get_worker_info()" for name in asking), "")


def _uses_its_id(function: Any) -> bool:
    """Returns True if a Python function reads its first argument."""
    code = _code_of(function)
    if code is None or not code.co_argcount:
        return False
    name = code.co_varnames[0]
    return any(
        name == read.argval or (isinstance(read.argval, tuple) and name in read.argval)
        for read in dis.get_instructions(code)
    )


def _asks_who_it_is(function: Any) -> bool:
    code = _code_of(function)
    return code is not None and "get_worker_info" in code.co_names


def _code_of(function: Any) -> CodeType | None:
    """The code of a Python function; of other callables it would be asked for by theirs."""
    return function.__code__ if type(function) is FunctionType else None
