"""
A preloaded server: forks workers on order, in which all that they need is imported already.

A worker gets what it would have had as a process of its own: the trainer's cwd, affinity, niceness
and standard files of now, and what multiprocessing prepares.
"""

import contextlib
import functools
import io
import os
import pickle
import sys
from dataclasses import dataclass
from multiprocessing import process, resource_tracker, spawn
from typing import Any

from shmloader.processes import forking
from shmloader.processes.birth import Birth
from shmloader.processes.channel import Channel
from shmloader.processes.sealed import Placed
from shmloader.processes.signals import Signals
from shmloader.processes.watching import ParentWatch, Watch
from shmloader.samples import random_state

_NAME = "shm_server"  # at most 15 bytes


@dataclass
class Letter:
    """What a worker has from the trainer at its birth."""

    parent: ParentWatch  # which is watched from here on
    signals: Signals
    # The places of the standard files among the descriptors; None: closed, which is /dev/null in a
    # worker, or the next file that it opens would be a standard one.
    standard: tuple[int | None, ...]
    tracker: int  # the place of multiprocessing's tracker of resources
    cores: set[int]  # the affinity
    nice: int
    preparation: dict[str, Any]  # as multiprocessing's spawn sends it
    process: bytes  # pickled


def serve(trainer: tuple[int, int | None], channel: Channel) -> None:
    """Fork workers on order until the trainer shuts the channel down, or dies."""
    handlers = forking.be_deaf(ignores=True)
    forking.show_name(_NAME)
    be = functools.partial(_be, trainer[0], handlers)
    try:
        forking.Forks(Watch(*trainer), channel, be).serve()
    except OSError as error:
        raise SystemExit(error.errno or 1) from error


def _be(trainer: int, handlers: dict[int, Any], birth: Birth, descriptors: list[int]) -> int:
    """Be the process of a letter. Returns the exit code."""
    letter: Letter = _read(descriptors[0])  # unpickled, it watches the trainer
    forking.hear_again(handlers, letter.signals)
    Placed.all = [birth.fileno(), *descriptors[1:]]
    _take_over(letter)
    random_state.seed_anew()  # before user code draws
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(letter.preparation)
        worker = pickle.loads(letter.process)
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]
    for each in descriptors:
        os.close(each)
    birth.close()
    watch = Watch(trainer, letter.parent.started)
    return forking.bootstrap(worker, next(iter(watch.descriptors), None))


def _read(file: int) -> Any:
    # Not by its offset: another process may have the same order.
    return pickle.load(io.BytesIO(os.pread(file, os.fstat(file).st_size, 0)))


def _take_over(letter: Letter) -> None:
    """Have what the trainer has now."""
    for number, place in enumerate(letter.standard):
        if place is not None:
            os.dup2(Placed.all[place], number, inheritable=True)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    resource_tracker._resource_tracker._fd = os.dup(Placed.all[letter.tracker])  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):  # of cores that are gone, or a system that refuses
        os.sched_setaffinity(0, letter.cores)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, letter.nice)
