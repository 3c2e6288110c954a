"""The trainings that run: one that is named, or all that this user may look at."""

import dataclasses
import os
from dataclasses import dataclass

from shmloader.cli.attach import process_facts
from shmloader.cli.attach.process_facts import RunningProcess
from shmloader.cli.attach.segments import look_into
from shmloader.cli.command import CommandError
from shmloader.views.live import LiveLoader, LiveWorker


@dataclass(frozen=True)
class LiveTrainer:
    """A process that iterates loaders, and what these do now."""

    process: RunningProcess
    is_stopped: bool  # by a signal
    loaders: tuple[LiveLoader, ...]
    unread: tuple[str, ...] = ()  # why some of its segments could not be read, as sentences

    @property
    def workers(self) -> list[LiveWorker]:
        """Those of all its loaders."""
        return [worker for loader in self.loaders for worker in loader.workers]


def find(pid: int) -> LiveTrainer:
    """Look at one training process."""
    try:
        named = process_facts.process(pid)
        loaders, unread = look_into(named)
    except FileNotFoundError:
        raise CommandError(
            f"there is no process {pid}, or /proc does not show it: a container shows only its own "
            "processes, under its own numbers, and /proc mounted with hidepid this user's"
        ) from None
    except PermissionError:
        raise CommandError(
            f"the kernel does not allow inspecting process {pid}: run this command as its user, or "
            "as root if it changed its user, may not be dumped, or has more capabilities"
        ) from None
    if loaders or unread:
        return _trainer(named, loaders, unread)
    raise CommandError(
        f"process {pid} has no shmloader loader with workers now: none was iterated yet, all are "
        "closed, or it is a worker, or started the training process, as torchrun; `shmloader top` "
        "shows all training processes"
    )


def find_all() -> tuple[list[LiveTrainer], int]:
    """Look at all this user's trainings, for root at all; count the processes that forbid it."""
    trainers, forbidden, user = [], 0, os.geteuid()
    for pid in sorted(process_facts.pids()):
        try:
            if user not in (0, os.stat(f"/proc/{pid}").st_uid):
                continue
            each = process_facts.process(pid)
            loaders, unread = look_into(each)
        except FileNotFoundError:  # it ended meanwhile
            continue
        except PermissionError:
            forbidden += 1
            continue
        if loaders:
            trainers.append(_trainer(each, loaders, unread))
    return trainers, forbidden


def none_found(forbidden: int) -> str:
    """Say that there is no training to look at, and which ones could not be seen."""
    text = (
        "no process of this user has a shmloader loader with workers now. To see a training "
        "process in a container, run this inside the container; to see another user's, run it as "
        "root"
    )
    if forbidden:
        text += f"; processes of this user that cannot be inspected: {forbidden}"
    return text


def _trainer(
    process: RunningProcess, loaders: tuple[LiveLoader, ...], unread: tuple[str, ...]
) -> LiveTrainer:
    seen = tuple(
        dataclasses.replace(each, workers=tuple(map(_as_it_is, each.workers))) for each in loaders
    )
    return LiveTrainer(process, process_facts.is_stopped(process.pid), seen, unread)


def _as_it_is(worker: LiveWorker) -> LiveWorker:
    """Note of a worker if its process is gone, or was stopped."""
    if worker.pid is None:
        return worker
    if not process_facts.lives(worker.pid):
        return dataclasses.replace(worker, state="gone", hangs=False)
    if process_facts.is_stopped(worker.pid):  # no sample is to blame
        return dataclasses.replace(worker, state="stopped", hangs=False)
    return worker
