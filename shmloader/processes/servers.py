"""The preloaded servers of this process: one for each of its surroundings."""

import os
import resource
import signal
import threading
import time
from collections.abc import Hashable
from multiprocessing import process, spawn, util

from shmloader.memory import groups
from shmloader.processes import ending, mother
from shmloader.processes.server import Server

_MOST_SERVERS = 4
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_WITHOUT = "or pass preload=() for workers that import their modules themselves"


def _surroundings(path: list[str]) -> Hashable:
    """
    Note what a process has from the one that started it, and a server cannot change later.

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


class Servers:
    """The servers, which live until the process ends; a forked child of it begins without any."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, Server] = {}

    def processes(self) -> list[Server]:
        """List the servers."""
        return list(self._by_key.values())

    def unwatch(self) -> None:
        """Nothing watches them."""

    def of_now(self, modules: tuple[str, ...]) -> Server:
        """Return the server for these modules and the surroundings of now."""
        if process.current_process()._config.get("daemon"):  # type: ignore[attr-defined]
            raise AssertionError("daemonic processes are not allowed to have children")
        path = spawn.get_preparation_data("")["sys_path"]
        key = modules, _surroundings(path)
        ending.end_at_exit(self)
        with self._lock:
            if key in self._by_key and self._by_key[key].has_failed:
                self._by_key.pop(key).close()  # what failed may have been mended since
            if key not in self._by_key:
                mother.try_calls(_WITHOUT)
                self._close_unused()
                self._by_key[key] = Server(modules, path)
            self._by_key[key].used_s = time.monotonic()
            return self._by_key[key]

    def _close_unused(self) -> None:
        """Close the server that was not used for longest, if there are many."""
        idle = [key for key, server in self._by_key.items() if not server.users]
        if idle and len(self._by_key) >= _MOST_SERVERS:
            self._by_key.pop(min(idle, key=lambda key: self._by_key[key].used_s)).close()

    def close(self) -> None:
        """End all servers, and with them the workers that they have started."""
        with self._lock:
            while self._by_key:
                self._by_key.popitem()[1].close()

    def disown(self) -> None:
        """Begin without servers, in a forked child: they are the parent's."""
        for server in self.processes():
            server.disown()
        self._begin()


servers = Servers()
os.register_at_fork(after_in_child=servers.disown)
