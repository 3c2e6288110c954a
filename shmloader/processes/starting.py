"""
Start processes that are quiet about Ctrl-C, and whose end is seen even if something else reaps it.

Note 1, Ctrl-C while a process starts. Ctrl-C reaches every process of the terminal, and the trainer
handles it. A worker that imports, unpickles or enters its loop would print a traceback, so it is
born with SIGINT blocked and unblocks it once it can keep quiet about it. So are signals that it
leaves to the trainer (`signals`). How it is born so:

- fork: it is blocked around the fork, and the trainer's handler only notes the signal meanwhile
  (`_start_by_fork`), because an exception in a hook of a fork is lost. The child gets the handler
  back (`_give_handler_back`).
- spawn: the dataset is pickled before the process is made and sent afterwards. Both may take long
  and must be open to Ctrl-C, so it is blocked for the moment between them alone: from when the
  last object has been pickled (`_BlocksInterruptsWhenPickled`) until multiprocessing stores the pid
  (`_Spawning.pid`). These are the two places at which multiprocessing calls our code.
- forkserver: nothing. Its children are quiet while they start, and they inherit what the server
  blocks, which is not only ours; SIGTERM ends that server, and so its workers.

Note 2, children that something else reaps. If SIGCHLD is ignored, the kernel reaps them; so may a
handler or a thread that waits for any child. multiprocessing then calls them alive for ever. But a
child stays a child of this process until it is reaped, so that ECHILD says for sure that it has
ended, with all of its threads; only its exit code is lost (`Child.poll`). A process of a fork
server is not concerned: the server reaps it.
"""

import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver, popen_fork, popen_spawn_posix
from multiprocessing.context import (
    DefaultContext,
    ForkContext,
    ForkProcess,
    ForkServerContext,
    ForkServerProcess,
    Process,
    SpawnContext,
    SpawnProcess,
)
from types import ModuleType
from typing import Any

from shmloader.processes import exits, signals
from shmloader.processes.proc import wait_for_child

_CONTEXTS = (DefaultContext, ForkContext, SpawnContext, ForkServerContext)
_PROCESSES = (Process, ForkProcess, SpawnProcess, ForkServerProcess)

# The exit code of a process that something else has reaped; no process can exit with it.
UNKNOWN_CODE = 256

# While a process is forked: the trainer's handler of SIGINT, which the child gets back.
_handler: Any = None


def start(process: Any) -> None:
    """Start a process of multiprocessing, as notes 1 and 2 say."""
    method = method_of(process)
    if method == "fork":
        process._Popen = Child
        _start_by_fork(process)
        return
    if method == "spawn":
        process._Popen = _Spawning
        # Attributes are pickled in the order in which they were made, so this one comes last.
        process._last = _BlocksInterruptsWhenPickled()
    process.start()


def method_of(started: Any) -> str:
    """Name the start method of a process of multiprocessing, or of a context."""
    process = getattr(started, "Process", started)
    method: str = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    return method


def is_standard(context: Any) -> bool:
    """Returns True for a context of multiprocessing's own, whose processes may be started here."""
    kind = getattr(context, "Process", None)
    return kind in _PROCESSES and (type(context) in _CONTEXTS or isinstance(context, ModuleType))


def preload_of(
    context: Any, named: tuple[str, ...] | None, unnamed: Callable[[], tuple[str, ...]] = tuple
) -> tuple[str, ...] | None:
    """
    Return what workers find imported by a server; None: each imports by itself.

    If the user named nothing, which is None, that is what is `unnamed` for a fork server.
    """
    method = method_of(context)
    if method == "fork" or not is_standard(context):
        return None
    if getattr(sys, "frozen", False):
        return None  # such a program would start itself again instead of a server
    return unnamed() if method == "forkserver" and named is None else named or None


def told_to_preload() -> tuple[str, ...]:
    """List what multiprocessing's fork server was told to import, as far as it can be."""
    told = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]
    is_default = told == ["__main__"]
    return () if is_default else tuple(name for name in told if name in sys.modules)


def _start_by_fork(process: Any) -> None:
    """
    Fork without interrupts (note 1).

    Blocking the signal keeps the child quiet, but any other thread of the trainer may still take
    it, and Python hands it to the main thread. So there it is noted, and raised afterwards.
    """
    global _handler
    came: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handler = _handler_of_this_thread()
    try:
        if handler is not None:
            _handler = handler
            signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.held_at_birth())
        if sys.version_info < (3, 13):
            process.run = functools.partial(exits.run_to_the_end, process.run)
        process.start()
    finally:
        vars(process).pop("run", None)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # a handler may raise here
        finally:
            if handler is not None:
                _handler = None
                signal.signal(signal.SIGINT, handler)
            if came:
                signal.raise_signal(signal.SIGINT)


def _handler_of_this_thread() -> Any:
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    return handler if is_main and callable(handler) else None


def _give_handler_back() -> None:
    if _handler is not None:
        signal.signal(signal.SIGINT, _handler)


if hasattr(os, "register_at_fork"):  # other systems import this to name a start method
    os.register_at_fork(after_in_child=_give_handler_back)


class Child(popen_fork.Popen):
    """How multiprocessing forks; its end is seen whatever reaps it (note 2)."""

    returncode: int | None

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None while the process runs."""
        if self.returncode is None:
            try:
                reaped, status = wait_for_child(self.pid, flag)
            except ChildProcessError:
                self.returncode = UNKNOWN_CODE
            except OSError:
                return None  # a refused call: as multiprocessing has it
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if reaped else None
        return self.returncode

    def kill(self) -> None:
        """Kill the process, unless it has ended: its pid may be another's then."""
        if self.poll() is None:
            super().kill()

    terminate = kill  # it may do nothing on SIGTERM


class _BlocksInterruptsWhenPickled:
    """Blocks SIGINT in the process that pickles it, once all user objects are pickled (note 1)."""

    def __reduce__(self) -> tuple[Any, ...]:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.held_at_birth())
        return _BlocksInterruptsWhenPickled, ()


class _Spawning(Child, popen_spawn_posix.Popen):
    """How multiprocessing spawns, with interrupts blocked while the process is made (note 1)."""

    _made: int | None = None

    def _launch(self, process_obj: Any) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            super()._launch(process_obj)  # type: ignore[misc]
        except BaseException:
            # No object will refer to the process, and it would complain about half a message.
            if self._made is not None:
                os.kill(self._made, signal.SIGKILL)
                self.poll(0)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    @property  # type: ignore[override]
    def pid(self) -> int | None:
        """Pid of the process, once it is made."""
        return self._made

    @pid.setter
    def pid(self, number: int) -> None:
        # multiprocessing stores the pid as soon as the process is made: the end of note 1's moment.
        self._made = number
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
