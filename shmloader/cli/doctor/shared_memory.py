"""Checks of memory: how much there is, and the kind of it that segments are made of."""

import contextlib
import fcntl
import mmap
import os
import re

from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.memory import limits, segment, ulimits

_HUGE = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
_FAULTS = "without them large batches take more page faults"
_COLLAPSE_FROM = (6, 1)  # the first kernel with MADV_COLLAPSE
_SCARCE_BYTES = 64 << 20  # two workers' private pages, and what core/room.pyx keeps free of them
_LITTLE_BYTES = 1 << 30
_SHORT_BYTES = 64 << 20
_SANDBOX = "the sandbox or its seccomp profile"


def memory() -> Finding:
    """Look how much memory this process could take now, on the machine and below each limit."""
    total_bytes, least = limits.total_bytes(), limits.available()
    if total_bytes is None or least is None:
        remedy = (
            "mount /proc: without it a batch that does not fit gets the process killed, instead "
            "of an error"
        )
        return Finding("memory", "note", "the system does not report how much there is", remedy)
    ring_bytes = segment.default_ring_bytes()
    fact = (
        f"{least.bytes / 1e6:.0f} MB of {total_bytes / 1e6:.0f} MB are left {least.where}; "
        f"ring_bytes is {ring_bytes / 1e6:.0f} MB by default"
    )
    if least.bytes < _SCARCE_BYTES:
        remedy = (
            "raise the limit, or end the programs that use the memory: two workers alone need "
            "that much"
        )
        return Finding("memory", "problem", fact, remedy)
    if least.bytes < _LITTLE_BYTES:
        remedy = (
            "a loader needs about `slots` times the size of a batch: if OutOfSharedMemory is "
            "raised, lower num_workers, prefetch_factor or batch_size, or raise the limit"
        )
        return Finding("memory", "note", fact, remedy)
    return Finding("memory", "ok", fact)


def object_kind() -> Finding:
    """Make a small shared-memory object, of the kind that segments are."""
    try:
        name = segment.backing_name()
    except ValueError as error:  # the variable's text is wrong
        return Finding("shared memory", "problem", str(error), f"unset {segment.BACKING_VARIABLE}")
    try:
        file = segment.create_object(mmap.PAGESIZE)
    except (OSError, ImportError) as error:
        return _no_object(name, error)
    return _of_memfd(file.number) if name == "memfd" else _of_posix()


def _of_memfd(descriptor: int) -> Finding:
    fact = "segments are memfds: no name, no file in /dev/shm"
    with contextlib.suppress(OSError):  # refused with the call that seals
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return Finding("shared memory", "ok", fact)
    remedy = (
        f"do nothing, or let {_SANDBOX} allow fcntl with F_ADD_SEALS: without seals a guard "
        "against mistakes is off, and slots that a forked child may read are not reused"
    )
    return Finding("shared memory", "note", f"{fact}; they cannot be sealed", remedy)


def _of_posix() -> Finding:
    fact = "segments are POSIX objects, which /dev/shm bounds"
    remedy = f"unset {segment.BACKING_VARIABLE}"
    if not hasattr(os, "memfd_create"):
        remedy = "use a Python that has os.memfd_create; some builds of conda lack it"
    elif not segment.has_memfd():
        remedy = f"let {_SANDBOX} allow memfd_create"
    return Finding("shared memory", "note", fact, remedy)


def _no_object(name: str, error: Exception) -> Finding:
    remedy = "mount a tmpfs at /dev/shm that may be written, or use memfd"
    if name == "memfd":
        remedy = f"let {_SANDBOX} allow memfd_create, or set {segment.BACKING_VARIABLE}=posix"
    elif isinstance(error, ImportError):
        remedy = "pip install posix_ipc"
    return Finding(
        "shared memory", "problem", f"a {name} object cannot be created: {error}", remedy
    )


def dev_shm(machine: Machine) -> Finding:
    """Look at /dev/shm, which bounds segments only if they are POSIX objects."""
    space = machine.space("/dev/shm")
    bounds = False
    with contextlib.suppress(ValueError):  # `object_kind` says so
        bounds = segment.backing_name() == "posix"
    if space is None:
        remedy = "mount a tmpfs there: torch's own loader needs it"
        return Finding("/dev/shm", "problem" if bounds else "note", "it does not exist", remedy)
    total_bytes, free_bytes = space
    fact = f"{free_bytes / 1e6:.0f} MB of {total_bytes / 1e6:.0f} MB are free"
    if free_bytes >= _LITTLE_BYTES:
        return Finding("/dev/shm", "ok", fact)
    if bounds:
        remedy = "enlarge it (docker: --shm-size), or use memfd, which it does not bound"
        return Finding("/dev/shm", "problem", fact, remedy)
    remedy = "shmloader does not use it; torch's own loader and NCCL need more (docker: --shm-size)"
    return Finding("/dev/shm", "note", fact, remedy)


def huge_pages(machine: Machine) -> Finding:
    """Look if large batches can lie in huge pages."""
    setting = machine.read(_HUGE).partition("[")[2].partition("]")[0]  # the one in brackets
    release = machine.read("/proc/sys/kernel/osrelease")
    fact = f"shmem_enabled is {setting or 'missing'}, Linux {release or 'unknown'}"
    if not setting or setting == "deny":
        cure = f"echo never > {_HUGE} is enough" if setting else "the kernel has none for tmpfs"
        return Finding("huge pages", "note", fact, f"{_FAULTS}: {cure}")
    if "THP_enabled:\t0" in machine.read("/proc/self/status"):
        fact += "; disabled for this process"
        return Finding("huge pages", "note", fact, f"{_FAULTS}: start without PR_SET_THP_DISABLE")
    if _numbers(release)[:2] < _COLLAPSE_FROM and setting not in ("always", "within_size", "force"):
        remedy = f"{_FAULTS}: use Linux 6.1 or newer, or echo always > {_HUGE}"
        return Finding("huge pages", "note", fact, remedy)
    return Finding("huge pages", "ok", fact)


def _numbers(release: str) -> tuple[int, ...]:
    """Returns the numbers that a kernel's release begins with: (6, 18, 44) of 6.18.44-x."""
    leading = re.match(r"\d+(\.\d+)*", release)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def length_limits() -> Finding:
    """Look at the limits that bound the length of a segment."""
    bound = ulimits.segment_bound()
    if bound is None:
        return Finding("ulimit -v, -f", "ok", "neither addresses nor files are limited")
    fact = f"{bound.reason}; a segment may have {bound.bytes / 1e6:.0f} MB, a slot its part of them"
    remedy = "raise the limit (-v or -f), or set fewer slots, which have longer ranges"
    return Finding(
        "ulimit -v, -f", "problem" if bound.bytes < _SHORT_BYTES else "note", fact, remedy
    )
