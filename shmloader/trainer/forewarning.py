"""What is told at iter(), because the workers that are started then will suffer from it."""

import dis
import functools
import inspect
import os
import warnings
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch.utils.data

from shmloader.errors import at_users_line, if_allowed, warn, warn_once
from shmloader.order.samplers import GENERATORS
from shmloader.processes import foreign_threads, scheduling, starting
from shmloader.trainer.taken import attributes_of


def check_worker_number(loader: Any, check: Callable[[], None]) -> None:
    """Warn of more workers than cores by torch's check; of so few cores, with the reason."""
    with if_allowed():  # the system may refuse to tell how many there are
        at_users_line(_of_bound(loader.num_workers) or check, torch.utils.data.DataLoader)


def tell(loader: Any, is_auto: bool) -> None:
    """
    Warn, once, of a fork beside threads that workers would miss, and of one core for all.

    If workers come and go (`is_auto`), what draws by worker has other numbers in each run.
    """
    context = loader.multiprocessing_context or torch.multiprocessing
    if starting.method_of(context) == "fork" and (news := foreign_threads.news()):
        warn(news)
    with if_allowed():
        reason = _reason(1)
        if reason and scheduling.allowed_cores(0) == loader.num_workers == 1:
            warn_once(f"the training shares its core with its worker: {reason}")
    draws = _own_draws(loader) if is_auto else ""
    if draws:
        warn_once(
            f'with num_workers="auto" batches may differ from run to run, because {draws}, and '
            "any worker may fetch any batch: draw from shmloader.rng(), or from random, "
            "numpy.random and torch, which depend on the batch alone"
        )


def _of_bound(workers: int) -> Callable[[], None] | None:
    """Return what warns in place of torch if OpenMP left this process fewer cores than workers."""
    allowed = scheduling.allowed_cores(0)
    reason = _reason(allowed) if workers > allowed else ""
    # It begins as torch's, for the filters of programs.
    text = f"This DataLoader will create {workers} worker processes in total: {reason}"
    return functools.partial(warnings.warn, text, stacklevel=1) if reason else None


def _reason(allowed: int) -> str:
    there = os.cpu_count() or 1
    setting = scheduling.bound_by(allowed, there)
    bound = f"{setting} binds this process to {allowed} of {there} cores, which workers inherit"
    return f"{bound}: {scheduling.UNBIND}" if setting else ""


# Random numbers that depend on the worker, although they are seeded by the batch


def _own_draws(loader: Any) -> str:
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
