"""What makes random numbers depend on the worker, although they are seeded by the batch."""

import dis
import functools
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch.utils.data import Dataset

from shmloader.order.samplers import GENERATORS
from shmloader.trainer.taken import attributes_of

_MOST_DATASETS = 16  # that one is made of
_NOT_CALLED = "__init__", "__iter__", "__len__"  # by workers
_MRO, _DICT = type.__dict__["__mro__"], type.__dict__["__dict__"]


def describe(loader: Any) -> str:
    """
    Say what of a loader draws by worker, as far as its attributes show; "" if nothing does.

    No code of users' runs to find it.
    """
    datasets = _made_of(loader.dataset)
    for dataset in datasets:
        for name, value in attributes_of(dataset):
            if issubclass(type(value), GENERATORS):
                return f"the dataset's attribute {name} is a generator of its own"
    if _uses_its_id(loader.worker_init_fn):
        return "worker_init_fn uses the worker's id"
    functions = [("worker_init_fn", loader.worker_init_fn), ("collate_fn", loader.collate_fn)]
    functions += [(f"the dataset's {name}", value) for name, value in _methods_of(datasets)]
    asking = (name for name, function in functions if _names_it(_code_of(function)[0]))
    return next((f"{name} calls get_worker_info()" for name in asking), "")


def _made_of(dataset: Any) -> list[Any]:
    """List a dataset and those inside of it, as of a Subset or a ConcatDataset."""
    found = [dataset]
    for outer in found:  # which grows
        for name, value in attributes_of(outer):
            found += [each for each in _datasets_in(name, value) if not _is_in(each, found)]
        if len(found) >= _MOST_DATASETS:
            break
    return found[:_MOST_DATASETS]


def _datasets_in(name: Any, value: Any) -> list[Any]:
    known = name if type(name) is str else ""
    if known == "datasets" and type(value) in (list, tuple, dict):
        inner = value.values() if type(value) is dict else value
        return list(itertools.islice(inner, _MOST_DATASETS))
    return [value] if known == "dataset" or issubclass(type(value), Dataset) else []


def _is_in(value: Any, found: list[Any]) -> bool:
    return any(each is value for each in found)  # by identity: a dataset compares as it likes


def _methods_of(datasets: list[Any]) -> Iterator[tuple[Any, Any]]:
    """List the functions of datasets' classes, by name."""
    for kind in itertools.chain(*(_MRO.__get__(type(dataset)) for dataset in datasets)):
        own = list(_DICT.__get__(kind).items())
        yield from ((name, value) for name, value in own if name not in _NOT_CALLED)


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
    """Returns True if a function's code reads the first argument that it is called with."""
    code, place = _code_of(function)
    if code is None or place >= code.co_argcount:
        return False
    name = code.co_varnames[place]
    return any(
        name == read.argval or (isinstance(read.argval, tuple) and name in read.argval)
        for read in dis.get_instructions(code)
    )


def _names_it(code: CodeType | None) -> bool:
    if code is None:
        return False
    inner = (each for each in code.co_consts if type(each) is CodeType)
    return "get_worker_info" in code.co_names or any(map(_names_it, inner))
