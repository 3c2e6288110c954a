"""Checks of processes: how they start, what they may do, and what is left when one crashes."""

import multiprocessing
import resource
from collections.abc import Iterable, Sequence

from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.memory import groups
from shmloader.processes import foreign_threads
from shmloader.stats.words import times

_PATTERN = "/proc/sys/kernel/core_pattern"
_DESCRIPTORS_FEW = 64
_DESCRIPTORS_LOW = 512  # every open file of the program counts, and a few for each worker
_LARGE_BYTES = 1 << 30


def start_method(method: str | None) -> Finding:
    """Look how workers start, by what `get_start_method(allow_none=True)` says."""
    chosen = method or multiprocessing.get_all_start_methods()[0]
    fact = f"{chosen}, {'as was set' if method else 'the default of this Python'}"
    if chosen == "fork":
        return Finding("start method", "ok", fact)
    remedy = "guard the script's own code with `if __name__ == '__main__':`"
    if chosen == "spawn":
        remedy += (
            "; each worker imports its modules itself, which takes seconds: preload=('torch',) "
            "imports them once, or multiprocessing_context='forkserver'"
        )
    return Finding("start method", "note", fact, remedy)


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


def page_locked(machine: Machine, accelerator: str | None) -> Finding:
    """Look if memory could be locked for copies to an accelerator, by torch's name; None: none."""
    limit = machine.limit(resource.RLIMIT_MEMLOCK)
    fact = f"ulimit -l: {_size(limit)}; accelerator: {accelerator or 'none that torch can use'}"
    if accelerator is None:
        return Finding("page-locked memory", "ok", f"{fact}, so pin_memory=True does nothing")
    if limit is not None and limit < _LARGE_BYTES:
        remedy = (
            "this limit does not bind CUDA's own pinned memory, but binds that of ROCm, RDMA and "
            "io_uring: ulimit -l unlimited (docker: --ulimit memlock=-1)"
        )
        return Finding("page-locked memory", "note", fact, remedy)
    return Finding("page-locked memory", "ok", fact)


def core_dumps(machine: Machine) -> Finding:
    """Say where a dump of a trainer or a worker goes."""
    limit, pattern = machine.limit(resource.RLIMIT_CORE), machine.read(_PATTERN)
    if pattern.startswith("|"):  # the limit does not count then
        return Finding(
            "core dumps", "ok", f"without slots, to the program {pattern[1:].split()[0]}"
        )
    if limit == 0 or not pattern:
        return Finding("core dumps", "ok", "none: ulimit -c is 0, or core_pattern is empty")
    fact = f"without slots, up to {_size(limit)}, to {pattern}"
    if limit is not None and limit < _LARGE_BYTES:
        return Finding("core dumps", "ok", fact)
    remedy = (
        "a dump is as large as the process's private memory, models and cached data included: set "
        "ulimit -c 0 if you do not read dumps"
    )
    return Finding("core dumps", "note", fact, remedy)


def descriptors(machine: Machine) -> Finding:
    """Look how many files may be open at once."""
    limit = machine.limit(resource.RLIMIT_NOFILE)
    fact = f"ulimit -n: {'unlimited' if limit is None else limit}"
    if limit is None or limit >= _DESCRIPTORS_LOW:
        return Finding("descriptors", "ok", f"{fact}; a loader needs a few for each worker")
    remedy = "raise the limit: ulimit -n 4096. Workers, the dataset's files and sockets all count"
    return Finding("descriptors", "problem" if limit < _DESCRIPTORS_FEW else "note", fact, remedy)


def _size(limit: int | None) -> str:
    if limit is None:
        return "unlimited"
    return f"{limit / 1e6:.4g} MB" if limit >= 1e6 else f"{limit / 1e3:.4g} kB"
