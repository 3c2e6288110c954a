"""All checks, in the order in which they are told."""

from collections.abc import Iterator

from shmloader import core
from shmloader.cli.attach.trainers import find_all
from shmloader.cli.doctor import processes, processors, shared_memory
from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.installation import trial, versions
from shmloader.cli.doctor.machine import Machine
from shmloader.cli.doctor.open_files import shared_files


def examine(machine: Machine) -> Iterator[Finding]:
    """Make each check when its finding is asked for; the loader, which may fail hard, is last."""
    yield versions()
    yield processors.cores(machine)
    memory = shared_memory.memory()
    yield memory
    yield shared_memory.object_kind()
    yield shared_memory.dev_shm(machine)
    yield shared_memory.huge_pages(machine)
    yield shared_memory.length_limits()
    yield processors.parking(core.parking())
    yield processes.descriptors(machine)
    trainings = _trainings()
    yield shared_files(trainings)
    yield processes.native_threads(trainings)
    if memory.verdict == "problem":
        remedy = "see the memory above: the kernel might have killed this command"
        yield Finding("a loader", "note", "was not tried", remedy)
    else:
        yield trial()


def _trainings() -> list[tuple[int, list[int]]]:
    """List the trainings of this user, each with its workers."""
    trainers, _ = find_all()
    return [
        (each.process.pid, [worker.pid for worker in each.workers if worker.pid])
        for each in trainers
    ]
