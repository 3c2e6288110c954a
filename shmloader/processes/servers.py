"""The preloaded servers of this process: one for each of its surroundings."""

import os
import threading
import time
from collections.abc import Hashable
from multiprocessing import process, spawn

from shmloader.processes import ending, mother, surroundings
from shmloader.processes.server import Server

_MOST_SERVERS = 4
_WITHOUT = "or pass preload=() for workers that import their modules themselves"


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
        key = modules, surroundings.of_now(path)
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
