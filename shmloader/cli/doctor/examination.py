"""All checks, in the order in which they are told; the last is a loader that runs."""

import platform
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import torch

import shmloader
from shmloader import core
from shmloader.cli.attach.trainers import find_all
from shmloader.cli.doctor import processes, shared_memory
from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.cli.doctor.open_files import shared_files

WORKERS = 2
_SAMPLES, _SAMPLE_NUMBERS, _BATCH_SIZE = 64, 1024, 4
_TIMEOUT_S = 60.0  # for a batch; a start by spawn on a busy machine takes seconds
# Samples that say which they are; as an array, which needs no /dev/shm to be sent to a worker.
SAMPLES = numpy.arange(_SAMPLES).repeat(_SAMPLE_NUMBERS).reshape(_SAMPLES, -1)


def examine(machine: Machine) -> Iterator[Finding]:
    """Make each check when its finding is asked for; the loader, which may fail hard, is last."""
    yield versions()
    yield processes.cores(machine)
    memory = shared_memory.memory()
    yield memory
    yield shared_memory.object_kind()
    yield shared_memory.dev_shm(machine)
    yield shared_memory.huge_pages(machine)
    yield shared_memory.length_limits()
    yield processes.parking(core.parking())
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


def versions() -> Finding:
    """Name the versions that are imported here."""
    python = platform.python_version()
    fact = f"torch {torch.__version__}, numpy {numpy.__version__}, Python {python}"
    return Finding("versions", "ok", fact)


def trial(dataset: Any = SAMPLES) -> Finding:
    """Iterate a small loader with two workers, and compare each number of its batches."""
    begin = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of fewer cores than workers
            right, first_s, spilled = _iterate(dataset, begin)
    except Exception as error:
        last = str(error).strip().splitlines()[-1:] or ["no text"]
        remedy = "see the error for what to change; the checks above may show why"
        return Finding("a loader", "problem", f"{type(error).__name__}: {last[0]}", remedy)
    batches = _SAMPLES // _BATCH_SIZE
    fact = f"{right} of {batches} batches of {WORKERS} workers were right, {spilled} were copied"
    fact += f"; the first came after {first_s:.2f} s"
    if right < batches:
        remedy = (
            "do not use shmloader here, and report this with the output of `shmloader doctor "
            "--json`"
        )
        return Finding("a loader", "problem", fact, remedy)
    return Finding("a loader", "ok", fact)


def _iterate(dataset: Any, begin: float) -> tuple[int, float, int]:
    """Count the right batches, the seconds from begin to the first, and the spilled ones."""
    wanted = torch.from_numpy(SAMPLES).split(_BATCH_SIZE)
    right, first_s = 0, 0.0
    options = {"batch_size": _BATCH_SIZE, "num_workers": WORKERS, "timeout": _TIMEOUT_S}
    with shmloader.DataLoader(dataset, **options) as loader:  # type: ignore[arg-type]
        for batch, right_one in zip(loader, wanted, strict=True):
            first_s = first_s or time.monotonic() - begin
            right += torch.equal(batch, right_one)
        return right, first_s, loader.stats().spilled
