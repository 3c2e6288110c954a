"""Checks of processes: what forks of them miss, and how many files they open."""

import resource
from collections.abc import Iterable, Sequence

from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.memory import groups
from shmloader.processes import foreign_threads
from shmloader.stats.words import times

_DESCRIPTORS_FEW = 64
_DESCRIPTORS_LOW = 512  # every open file of the program counts, and a few for each worker


def native_threads(trainings: Iterable[tuple[int, Sequence[int]]]) -> Finding:
    """Look for threads that forked workers would miss, of (pid, workers)."""
    name, seen = "native threads", 0
    for trainer, workers in trainings:
        command = _command(trainer)
        if not command or command not in map(_command, workers):
            continue  # none is a copy of it
        seen += 1
        if found := foreign_threads.look(trainer):
            fact = f"process {trainer}, which forks workers, has {foreign_threads.named(found)}"
            return Finding(name, "note", fact, foreign_threads.outcome(found))
    if not seen:
        return Finding(name, "ok", "no training process runs that has forked workers")
    return Finding(name, "ok", f"none that workers would miss, in {times(seen, 'training')}")


def _command(process: int) -> str:
    """Read the command of a process, which it shares with processes that it forks; "": gone."""
    return groups.read_text(f"/proc/{process}/cmdline")


def descriptors(machine: Machine) -> Finding:
    """Look how many files may be open at once."""
    limit = machine.limit(resource.RLIMIT_NOFILE)
    fact = f"ulimit -n: {'unlimited' if limit is None else limit}"
    if limit is None or limit >= _DESCRIPTORS_LOW:
        return Finding("descriptors", "ok", f"{fact}; a loader needs a few for each worker")
    remedy = "raise the limit: ulimit -n 4096. Workers, the dataset's files and sockets all count"
    return Finding("descriptors", "problem" if limit < _DESCRIPTORS_FEW else "note", fact, remedy)
