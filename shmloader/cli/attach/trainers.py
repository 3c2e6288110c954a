"""The trainings that run: one that is named, or all that this user may look at."""

from __future__ import annotations

import dataclasses
import os
import pwd
from dataclasses import dataclass

from shmloader.cli.attach.running import (
    RunningProcess,
    beside,
    is_stopped,
    lives,
    owner_of,
    pids,
    process,
)
from shmloader.cli.attach.segments import look_into
from shmloader.cli.command import CommandError
from shmloader.views.live import HANGS_AFTER_S, LiveLoader, LiveWorker


@dataclass(frozen=True)
class LiveTrainer:
    """
    A process that iterates loaders, and what these do now.

    Attributes:
        state: "waiting" if one of its loaders is waited for, "stepping" if it uses a batch of one,
            "between" if none has an epoch, "busy" if that could not be read; "stopped" if a signal
            has stopped the process, whatever it did then.
        since_s: Seconds since that began; None if it is stopped.
        unread: Why some of its segments could not be read, as sentences.
    """

    process: RunningProcess
    state: str
    since_s: float | None
    loaders: tuple[LiveLoader, ...]
    unread: tuple[str, ...] = ()

    def hung(self) -> list[LiveWorker]:
        """List the workers that hang."""
        return [worker for loader in self.loaders for worker in loader.workers if worker.hangs]


def find(pid: int, hangs_after_s: float = HANGS_AFTER_S) -> LiveTrainer:
    """Look at one training."""
    try:
        named = process(pid)
        found = look_into(named, hangs_after_s)
    except FileNotFoundError:
        raise CommandError(_no_process(pid)) from None
    except PermissionError:
        raise CommandError(_forbidden(pid)) from None
    if found.loaders or found.unread:
        return _trainer(named, found.loaders, found.unread)
    if found.owners:
        owners = ", ".join(map(str, found.owners))
        raise CommandError(
            f"process {pid} trains nothing itself, but has a loader of process {owners} open, as "
            "its workers do: look at that one"
        )
    raise CommandError(
        f"process {pid} has no loader of shmloader's with workers now: none was iterated yet, all "
        "are closed, or the training is a child of it; without a number, all trainings are shown"
    )


def find_all(hangs_after_s: float = HANGS_AFTER_S) -> tuple[list[LiveTrainer], int]:
    """Look at all this user's trainings, for root at all; count the processes that forbid it."""
    trainers, forbidden, user = [], 0, os.geteuid()
    for pid in sorted(pids()):
        try:
            if user not in (0, owner_of(pid)):
                continue
            each = process(pid)
            found = look_into(each, hangs_after_s)
        except FileNotFoundError:  # it ended meanwhile
            continue
        except PermissionError:
            forbidden += 1
            continue
        if found.loaders:
            trainers.append(_trainer(each, found.loaders, found.unread))
    return trainers, forbidden


def none_found(forbidden: int) -> str:
    """Say that there is no training to look at, and which ones could not be seen."""
    text = (
        "no process of this user has a loader of shmloader's with workers now; trainings in "
        "containers are seen from the machine or from inside, those of other users by root"
    )
    if forbidden:
        text += f"; processes of this user that forbid to look into them: {forbidden}"
    return text


def _trainer(
    process: RunningProcess, loaders: tuple[LiveLoader, ...], unread: tuple[str, ...]
) -> LiveTrainer:
    there = beside(process) if loaders else {}
    seen = tuple(_as_seen_here(loader, there) for loader in loaders)
    if is_stopped(process.pid):
        return LiveTrainer(process, "stopped", None, seen, unread)
    known = [loader for loader in seen if loader.state == "live"]
    for state in ("waiting", "stepping", "busy"):
        since = [loader.since_s for loader in known if loader.trainer == state]
        if since:
            return LiveTrainer(process, state, since[0], seen, unread)
    return LiveTrainer(process, "between", None, seen, unread)


def _as_seen_here(loader: LiveLoader, there: dict[int, int]) -> LiveLoader:
    """Give a loader's workers the process ids of this namespace, and note which are gone."""
    workers = tuple(_worker_as_seen_here(worker, there) for worker in loader.workers)
    return dataclasses.replace(loader, workers=workers)


def _worker_as_seen_here(worker: LiveWorker, there: dict[int, int]) -> LiveWorker:
    if worker.pid is None:
        return worker
    pid = there.get(worker.pid) if there else worker.pid
    if pid is None or not lives(pid):
        return dataclasses.replace(worker, pid=pid, state="gone", hangs=False)
    if is_stopped(pid):  # no sample is to blame
        return dataclasses.replace(worker, pid=pid, state="stopped", hangs=False)
    return dataclasses.replace(worker, pid=pid)


def _no_process(pid: int) -> str:
    return (
        f"there is no process {pid}, or /proc does not show it: a container shows its own "
        "processes, under numbers of its own, and /proc mounted with hidepid those of this user"
    )


def _forbidden(pid: int) -> str:
    try:
        owner = owner_of(pid)
    except OSError:
        return _no_process(pid)
    if owner != os.geteuid():
        return f"process {pid} is {_name_of(owner)}'s: run this command as that user or as root"
    return (
        f"the kernel forbids to look into process {pid}, although it is this user's: it changed "
        "its user, or may not be dumped, or has capabilities that this shell has not; run this "
        "command as root, or where the process runs"
    )


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # of a container, or of another machine
        return f"user {user}"
