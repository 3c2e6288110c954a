"""What a process has from the one that started it, which a preloaded server cannot change later."""

import os
import resource
import signal
from collections.abc import Hashable
from multiprocessing import spawn, util

from shmloader.memory import groups

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def of_now(path: list[str]) -> Hashable:
    """
    Note the surroundings of this process.

    What differs in cwd, affinity, niceness and standard files does not count: a worker gets those
    of now.
    """
    # No call returns the umask without changing it.
    status = groups.read_text("/proc/self/status").splitlines()
    return (
        spawn.get_executable(),
        *util._args_from_interpreter_flags(),  # type: ignore[attr-defined]
        tuple(path),
        frozenset(os.environb.items()),
        tuple(map(resource.getrlimit, _LIMITS)),
        *(line for line in status if line.startswith("Umask")),
        groups.read_text("/proc/self/cgroup"),
        *(os.getresuid(), os.getresgid(), *os.getgroups()),
        frozenset(n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN),
        standard(),
    )


def standard() -> tuple[int, ...]:
    """List the standard files that are open."""
    return tuple(each for each in (0, 1, 2) if _is_open(each))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
