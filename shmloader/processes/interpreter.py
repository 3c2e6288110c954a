"""A new interpreter that is a child of this process, started with some modules to import."""

import marshal
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import spawn, util
from typing import Any

from shmloader.memory import segment
from shmloader.processes import signals, starting, watching
from shmloader.processes.channel import Channel

# Before anything is looked for: with -c the cwd is first on the path, whatever files lie there.
_COMMAND = (
    "import sys, marshal, posix; given = marshal.loads(posix.pread({}, {}, 0)); posix.close({}); "
    "sys.path[:] = given['path']; from shmloader.processes.preloading import run; run(given)"
)


def _main() -> dict[str, Any]:
    """Return what multiprocessing tells a new process of the main module."""
    told = spawn.get_preparation_data("")
    names = "init_main_from_name", "init_main_from_path"
    main: dict[str, Any] = {name: told[name] for name in names if name in told}
    return {**main, "sys_argv": list(map(str, sys.argv))}


class Interpreter:
    """The child, with what is used here of a Process."""

    _start_method = "interpreter"

    def __init__(self, far_end: Channel, modules: Sequence[str], path: list[str]) -> None:
        """Be a server; it is not started."""
        self._far_end, self._modules, self._path = far_end, modules, path
        self._child: starting.Child | None = None

    def start(self) -> None:
        """Start it."""
        given = {
            "path": self._path,
            "channel": self._far_end.fileno(),
            "trainer": (os.getpid(), watching.start_time(os.getpid())),
            "modules": list(self._modules),
            "main": _main() if "__main__" in self._modules else {},
        }
        file = segment.open_object("shmloader-server")
        length = os.pwrite(file.fileno(), marshal.dumps(given), 0)
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        code = _COMMAND.format(file.fileno(), length, file.fileno())
        command = [spawn.get_executable(), *flags, "-c", code]
        # Ctrl-C reaches every process of the terminal, and this one would print a traceback.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals.held_at_birth())
        try:
            passed = [file.fileno(), self._far_end.fileno()]
            self._child = starting.Child.of(util.spawnv_passfds(command[0], command, passed))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def pid(self) -> int | None:
        """Its pid; None before the start."""
        return None if self._child is None else self._child.pid

    ident = pid

    @property
    def exitcode(self) -> int | None:
        """As a Process has it."""
        return None if self._child is None else self._child.poll()

    def is_alive(self) -> bool:
        """Returns True if it runs."""
        return self._child is not None and self._child.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most timeout seconds."""
        watching.wait_until(lambda: not self.is_alive(), timeout)

    def kill(self) -> None:
        """Kill it."""
        if self._child is not None and self.is_alive():
            os.kill(self._child.pid, signal.SIGKILL)
