"""What makes random numbers depend on the worker, although they are seeded by the batch."""

import dis
import functools
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch.utils.data import Dataset

from shmloader.order.samplers import GENERATORS
from shmloader.trainer.taken import attributes_of

_MOST_DATASETS = 16  # that one is made of
_MOST_LAYERS = 8  # of decorators and partial() around a function
_NOT_CALLED = "__init__", "__iter__", "__len__"  # by workers
_MRO, _DICT = type.__dict__["__mro__"], type.__dict__["__dict__"]
_FUNCTION_IN = (
    (functools.partial, "func"),
    (functools.cached_property, "func"),
    (property, "fget"),
    (MethodType, "__func__"),
    (classmethod, "__func__"),
    (staticmethod, "__func__"),
)


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
    functions += [(f"the dataset's {name}", value) for name, value in _members_of(datasets)]
    asking = (name for name, function in functions if _asks_who_it_is(function))
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
        return list(islice(inner, _MOST_DATASETS))
    return [value] if known == "dataset" or issubclass(type(value), Dataset) else []


def _is_in(value: Any, found: list[Any]) -> bool:
    return any(each is value for each in found)  # by identity: a dataset compares as it likes


def _members_of(datasets: list[Any]) -> Iterator[tuple[Any, Any]]:
    """List what datasets and their classes have, by name: functions among others."""
    for kind in _kinds_of(datasets):
        own = list(_DICT.__get__(kind).items())
        yield from ((name, value) for name, value in own if name not in _NOT_CALLED)
    for dataset in datasets:
        yield from attributes_of(dataset)


def _kinds_of(datasets: list[Any]) -> list[type]:
    kinds: list[type] = []
    for dataset in datasets:
        kinds += [kind for kind in _MRO.__get__(type(dataset)) if not _is_in(kind, kinds)]
    return kinds


def _uses_its_id(function: Any) -> bool:
    """Returns True if a callable's Python code reads the first argument that it is called with."""
    return any(_reads(code, given) for code, given in _codes_of(function))


def _reads(code: CodeType, place: int) -> bool:
    if place >= code.co_argcount:
        return False
    name = code.co_varnames[place]
    return any(
        name == read.argval or (isinstance(read.argval, tuple) and name in read.argval)
        for read in dis.get_instructions(code)
    )


def _asks_who_it_is(function: Any) -> bool:
    return any(_names_it(code) for code, _ in _codes_of(function))


def _names_it(code: CodeType) -> bool:
    inner = (each for each in code.co_consts if type(each) is CodeType)
    return "get_worker_info" in code.co_names or any(map(_names_it, inner))


def _codes_of(function: Any) -> Iterator[tuple[CodeType, int]]:
    """
    List the Python code of a callable, and of what it decorates, without running any.

    Each comes with how many of its first arguments are given before the call.
    """
    given = 0
    for _ in range(_MOST_LAYERS):
        kind = type(function)
        if kind is FunctionType:
            yield function.__code__, given
        place = next((place for holder, place in _FUNCTION_IN if kind is holder), None)
        if place is not None:
            given += len(function.args) if kind is functools.partial else kind is MethodType
            function = getattr(function, place)
        elif (decorated := _decorated_by(function)) is not None:
            function = decorated
        elif type(call := _call_of(kind)) is FunctionType:
            function, given = call, given + 1
        else:
            return


def _decorated_by(function: Any) -> Any:
    own = attributes_of(function)
    return next((it for name, it in own if type(name) is str and name == "__wrapped__"), None)


def _call_of(kind: type) -> Any:
    owners = (_DICT.__get__(each) for each in _MRO.__get__(kind))
    return next((own["__call__"] for own in owners if "__call__" in own), None)
