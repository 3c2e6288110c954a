"""Looks for files whose place the workers of a training share: forked after they were opened."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shmloader.cli.doctor.finding import Finding
from shmloader.stats.words import times

_STANDARD = 3  # stdin, stdout and stderr are below
_LOOKS = 20  # at a file whose offset a worker moves meanwhile
_REMEDY = (
    "processes that read it move each other's file position, and get wrong samples: open it in "
    "the worker, at the first sample or in worker_init_fn, read with os.pread(), or use "
    'multiprocessing_context="forkserver"'
)


class _Open(NamedTuple):
    """An open file of a process, as far as another process's may be the same."""

    number: int
    path: str
    place: int  # the offset
    flags: str


def shared_files(trainings: Iterable[tuple[int, Sequence[int]]]) -> Finding:
    """Look for files that were read and whose offset workers share, of (pid, workers)."""
    trainings = list(trainings)
    for trainer, workers in trainings:
        own = {each.number for each in _opened(trainer)}
        for worker in workers:
            opened = (each.number for each in _opened(worker) if each.number in own)
            shared = next(filter(None, (_shared(trainer, worker, each) for each in opened)), None)
            if shared is not None:
                fact = (
                    f"worker {worker} shares the file position in {shared.path} (descriptor "
                    f"{shared.number}, at byte {shared.place}) with process {trainer}"
                )
                return Finding("open files", "note", fact, _REMEDY)
    if not trainings:
        return Finding(
            "open files", "ok", "no training process runs whose workers could share a file position"
        )
    seen = times(len(trainings), "training")
    return Finding("open files", "ok", f"no worker of {seen} shares a file position")


def _shared(trainer: int, worker: int, number: int) -> _Open | None:
    """Returns what both have open by a number, if they are seen at one place of it."""
    for _ in range(_LOOKS):
        before, found, after = _look(trainer, number), _look(worker, number), _look(trainer, number)
        if before is None or found is None or after is None:
            return None
        if before == after:  # no process moved it meanwhile
            return found if found == before else None
    return None


def _opened(pid: int) -> Iterator[_Open]:
    """List the regular files of a process in which it is not at the beginning."""
    try:
        numbers = [int(each) for each in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # it has ended, or may not be looked at
        return
    for number in numbers:
        found = _look(pid, number) if number >= _STANDARD else None
        if found is not None and found.place > 0:
            yield found


def _look(pid: int, number: int) -> _Open | None:
    try:
        status = os.stat(f"/proc/{pid}/fd/{number}")
        path = os.readlink(f"/proc/{pid}/fd/{number}")
        with open(f"/proc/{pid}/fdinfo/{number}") as file:
            said = dict(line.split(":", 1) for line in file if ":" in line)
        place, flags = int(said["pos"]), said["flags"].strip()
    except (OSError, KeyError, ValueError):  # it was closed meanwhile
        return None
    is_read = int(flags, 8) & os.O_ACCMODE != os.O_WRONLY
    is_file = stat.S_ISREG(status.st_mode) and not path.startswith("/memfd:")
    return _Open(number, path, place, flags) if is_file and is_read else None
