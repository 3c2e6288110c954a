"""
Starting, knowing and ending processes: without noise, and never longer than can be waited for.

Ctrl-C reaches every process of the terminal. The trainer has the word then, so a worker is born
with interrupts blocked and lets them in once it can keep quiet about them. A worker that is told to
leave may be anywhere: in user code, stopped, or deaf to SIGTERM. Whoever waits for it waits for all
together, then asks, then kills.
"""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import popen_spawn_posix
from typing import Any

# Together less than the two seconds within which all workers of a trainer that ends are gone.
LEAVE_S = 1.0  # to finish the batch in hand
_TERMINATE_S = 0.5  # to end after SIGTERM
_KILL_S = 5.0  # after SIGKILL only the kernel can be waited for


# While a process is forked: the trainer's handler of SIGINT, which the child gets back.
_handler: Any = None


def _start_by_fork(process):
    """
    Fork without interrupts: what they raise in the hooks of forks would be lost.

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
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            _handler = None
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _handler_of_this_thread():
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    return handler if is_main and callable(handler) else None


def _give_handler_back():
    if _handler is not None:
        signal.signal(signal.SIGINT, _handler)


os.register_at_fork(after_in_child=_give_handler_back)


def start(process):
    """
    Start a process that is born with interrupts blocked.

    A fork server's children are quiet about interrupts while they start, and they inherit what the
    server blocks, which is not only ours: there nothing is blocked.
    """
    method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    if method == "fork":
        _start_by_fork(process)
        return
    if method == "spawn":
        process._Popen = _Spawning
        process._last = _Last()  # attributes are pickled in the order in which they were made
    process.start()


class _Last:
    """What is pickled after everything of the user's."""

    def __reduce__(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return _Last, ()


class _Spawning(popen_spawn_posix.Popen):
    """
    How multiprocessing spawns, with interrupts blocked for the moment in which the process is made.

    Pickling a dataset before it and sending it afterwards may take long, and can be interrupted.
    """

    _made = None

    def _launch(self, process_obj):
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            super()._launch(process_obj)  # type: ignore[misc]
        except BaseException:
            # Nobody will know of it, and it would complain about half a message.
            if self._made is not None:
                os.kill(self._made, signal.SIGKILL)
                os.waitpid(self._made, 0)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    @property
    def pid(self):
        return self._made

    @pid.setter
    def pid(self, number):
        self._made = number
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _stat(pid):
    """What the kernel says of a process, from its state on; nothing where nobody says."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid):
    """When a process started, in the kernel's ticks as text; None where nobody says."""
    return next(iter(_stat(pid)[19:20]), None)


def is_running(pid, started):
    """
    Whether the process of that start time runs; one that waits to be reaped does not.

    Where nobody says when it started, whatever process has that pid is taken for it.
    """
    if started is not None:
        state = _stat(pid)
        return state[19:20] == [started] and state[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def join_all(processes, timeout_s):
    """Wait until all processes have ended, at most timeout_s seconds for all of them together."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.join(timeout=max(0.0, deadline - time.monotonic()))


def end_all(processes):
    """End the processes that still run, those too that are stopped or deaf to SIGTERM."""
    try:
        for process in _running(processes):
            process.terminate()
        join_all(processes, _TERMINATE_S)
    finally:
        # Also after an interrupt: whoever is impatient shall not have to wait for more.
        for process in _running(processes):
            process.kill()
        join_all(processes, _KILL_S)


def _running(processes):
    return [process for process in processes if process.is_alive()]
