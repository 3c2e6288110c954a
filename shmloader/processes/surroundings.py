"""What a process has from the one that started it, which a preloaded server cannot change later."""

import os
import resource
import signal
from multiprocessing import spawn, util
from typing import Any, NamedTuple

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Surroundings(NamedTuple):
    """
    What two processes may differ in although they were started by the same one.

    What differs in cwd, affinity, niceness and standard files does not count: a worker gets those
    of now.
    """

    executable: bytes
    flags: tuple[str, ...]
    path: tuple[str, ...]
    variables: frozenset[tuple[bytes, bytes]]
    limits: tuple[tuple[int, int], ...]
    kernels: tuple[Any, ...]  # umask and groups
    ignored: frozenset[int]  # signals
    standard: tuple[int, ...]  # those of the descriptors 0, 1 and 2 that are open


def of_now(path: list[str]) -> Surroundings:
    """Note the surroundings of this process."""
    return Surroundings(
        executable=os.fsencode(spawn.get_executable()),
        flags=tuple(util._args_from_interpreter_flags()),  # type: ignore[attr-defined]
        path=tuple(path),
        variables=frozenset(os.environb.items()),
        limits=tuple(map(resource.getrlimit, _LIMITS)),
        kernels=(*_kernels(), os.getresuid(), os.getresgid(), *os.getgroups()),
        ignored=frozenset(each for each in signal.valid_signals() if _is_ignored(each)),
        standard=standard(),
    )


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def standard() -> tuple[int, ...]:
    """List the standard files that are open."""
    return tuple(each for each in (0, 1, 2) if _is_open(each))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _kernels() -> list[str]:
    """Read the umask, which no call returns without changing it, and the control groups."""
    umask = [line for line in _lines("/proc/self/status") if line.startswith("Umask")]
    return umask + _lines("/proc/self/cgroup")


def _lines(name: str) -> list[str]:
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []
