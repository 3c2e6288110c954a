"""Checks of processes: their cores, how they wait, the files they open, what forks miss."""

import resource
from collections.abc import Iterable, Sequence

from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.memory import groups
from shmloader.processes import foreign_threads, scheduling
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


def cores(machine: Machine) -> Finding:
    """Compare the cores that this process may use with those that programs count."""
    there, allowed = machine.cores(), machine.affinity()
    quota = scheduling.least_share(machine.folders("cpu"), machine.read)
    usable = min(allowed, quota)
    fact = f"{usable:g} of {there} may be used"
    bound_by = scheduling.bound_by(allowed, there)
    if allowed < there:
        fact += f"; affinity: {allowed}" + (f", by {bound_by}" if bound_by else "")
    if quota < allowed:
        fact += f"; the control group's quota: the time of {quota:g}"
    if bound_by:
        return Finding("cores", "note", fact, f"workers inherit it: {scheduling.UNBIND}")
    if usable < there:
        remedy = (
            f"choose num_workers for what is usable ({usable:g}), not for os.cpu_count(), which "
            f"returns {there}"
        )
        return Finding("cores", "note", fact, remedy)
    if there == 1:
        remedy = "workers and training step take turns: num_workers=1, or more only if they wait"
        return Finding("cores", "note", fact, remedy)
    return Finding("cores", "ok", fact)


def parking(parks_by: str) -> Finding:
    """Look how processes wait for each other, by what `core.parking()` says."""
    if parks_by == "futex":
        return Finding("futex", "ok", "processes wake each other by futex")
    remedy = (
        "a wake-up may take 1 ms: build without SHMLOADER_PORTABLE, or let the sandbox or its "
        "seccomp profile allow futex"
    )
    return Finding("futex", "note", f"processes wait by {parks_by}", remedy)
