"""
The trainer's handle of a preloaded server, and of the workers that it starts.

A server of our own rather than multiprocessing's forkserver class, which could be told to preload
too: its workers' ends are seen by a pipe of the server's, so that a server that is killed makes
living workers look dead while they write to slots; it swallows errors of imports; it lives on with
a forked child of the trainer; and its socket has a name, and since Python 3.14 a key. Births
(`birth`) say which process each worker is, whatever becomes of the server.

One server serves one surrounding: whatever of it a forked worker could not have anew is compared
at each start, and any difference begins another server. A forked child of the trainer has none.
"""

import contextlib
import marshal
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import spawn, util
from typing import Any

from shmloader.errors import PreloadFailed, warn
from shmloader.memory import segment
from shmloader.processes import signals, starting, watching
from shmloader.processes.birth import Birth
from shmloader.processes.channel import Channel
from shmloader.processes.mother import Mother

_NEWS_BYTES = 1 << 14
# Signals that are no fault of what a server imports.
_FROM_OUTSIDE = signal.SIGKILL, signal.SIGTERM

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


class Interpreter(starting.Child):
    """
    A new interpreter, started with some modules to import: with what is used here of a Process.
    """

    _start_method = "interpreter"
    pid: int | None = None  # type: ignore[assignment]

    def __init__(self, far_end: Channel, modules: Sequence[str], path: list[str]) -> None:
        self._far_end, self._modules, self._path = far_end, modules, path
        self.returncode = None

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
            self.pid = util.spawnv_passfds(command[0], command, passed)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def exitcode(self) -> int | None:
        """As a Process has it."""
        return None if self.pid is None else self.poll()

    def is_alive(self) -> bool:
        """Returns True if it runs."""
        return self.pid is not None and self.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most timeout seconds."""
        watching.wait_until(lambda: not self.is_alive(), timeout)


class Server(Mother):
    """A server that forks workers in which modules are imported."""

    process: Interpreter

    def __init__(self, modules: Sequence[str], path: list[str]) -> None:
        """Be a server; it starts when it is ordered something."""
        self._modules, self._path = modules, path
        self._lock = threading.RLock()
        self._news: dict[str, Any] = {}
        self.used_s = 0.0  # when it was last asked for, by the monotonic clock
        self.unfit = ""  # what a worker could not have of its modules, once known, as a clause
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  # that order workers
        super().__init__()

    def _new_process(self, near_end: Channel, far_end: Channel) -> Interpreter:
        self._news = {}
        return Interpreter(far_end, self._modules, self._path)

    def order(self, birth: Birth, others: Callable[[], Sequence[int]] = tuple) -> Any:
        """As `Mother.order`; None too if it cannot fork workers, which `unfit` says."""
        with self._lock:
            self.hear()
            self._look_for_a_crash()
            return None if self.unfit else super().order(birth, others)

    def _look_for_a_crash(self) -> None:
        """Take a server that has crashed at an import for one that said that it failed."""
        is_importing = "importing" in self._news and not self.unfit and "ready" not in self._news
        code = self.process.exitcode or 0
        if is_importing and code < 0 and -code not in _FROM_OUTSIDE:
            error = f"that ended the process by signal {-code}"
            self._news |= {"failed": self._news["importing"], "error": error}
            self.hear()

    def hear(self) -> None:
        """Take in what the server has said."""
        with self._lock:
            while said := self._channel.hear_now(_NEWS_BYTES):
                self._news.update(marshal.loads(said))
        if self.has_failed:
            name, error = self._news["failed"], self._news["error"]
            raise PreloadFailed(
                f"module {name!r} cannot be imported in the process that starts workers: {error}. "
                "Omit it from preload, or pass preload=() for workers that import their modules "
                "themselves",
                name=name,
            )
        if "unfit" in self._news and not self.unfit:
            self.unfit = self._news["unfit"]
            warn(
                f"importing {', '.join(self._modules)} {self.unfit}, so each worker imports its "
                "modules itself: omit the module that does so from preload"
            )

    @property
    def has_failed(self) -> bool:
        """True if it has said that a module cannot be imported, and so ended."""
        return "failed" in self._news

    @property
    def doing(self) -> str | None:
        """What its workers wait for, as in "importing torch"; None: for nothing."""
        with contextlib.suppress(PreloadFailed):
            self.hear()
        if "ready" in self._news or not self.is_alive():
            return None
        return f"importing {self._news.get('importing', 'Python')}"

    def disown(self) -> None:
        """Let go of it in a forked child of the trainer, which it would outlive otherwise."""
        self._channel.close()
