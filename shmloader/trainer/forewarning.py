"""What is told at iter(), because the workers that are started then will suffer from it."""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch.utils.data

from shmloader.errors import at_users_line, if_allowed, warn, warn_once
from shmloader.processes import foreign_threads, scheduling, starting
from shmloader.trainer import own_draws


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
    draws = own_draws.describe(loader) if is_auto else ""
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
