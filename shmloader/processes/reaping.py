"""See the ends of this process's children, of those too that it adopted, beside other events."""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from typing import Any


class Reaper:
    """
    Wakes this process when a child ends. In a fork of it another one has to be made.

    Attributes:
        handler: Of SIGCHLD, as it was before; None if it was not set from Python.
    """

    def __init__(self) -> None:
        """Take over SIGCHLD, which must be blocked, and let it arrive."""
        self._awake, self._bell = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._bell, False)
        # Written to by the interpreter's own handler, which is installed with any of Python's.
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        self.handler: Any = signal.signal(signal.SIGCHLD, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def close(self) -> None:
        """Close what wakes this process, or the one that it was forked from."""
        signal.set_wakeup_fd(-1)
        os.close(self._awake)
        os.close(self._bell)

    def wait(self, descriptors: list[int], timeout_s: float | None) -> set[int]:
        """Wait for a child's end, or until one of the descriptors is readable; return those."""
        events = select.poll()
        for descriptor in (self._awake, *descriptors):
            events.register(descriptor, select.POLLIN)
        ready = {each for each, _ in events.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._awake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._awake, 1 << 16)
        return ready

    def ends(self) -> Iterator[tuple[int, int]]:
        """Reap children that have ended; their pids and exit codes. A pid is free afterwards."""
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while (end := os.waitid(os.P_ALL, 0, flags)) is not None:
                yield end.si_pid, _code(end)
                os.waitpid(end.si_pid, 0)

    def end_of(self, pid: int) -> Iterator[int]:
        """Wait for the end of a child and reap it; its exit code. Nothing if it is no child."""
        with contextlib.suppress(ChildProcessError):
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if end is not None:
                yield _code(end)
                os.waitpid(pid, 0)


def _code(end: Any) -> int:
    status: int = end.si_status
    return status if end.si_code == os.CLD_EXITED else -status


def _ignore(*_: object) -> None:
    """Be a handler, so that the signal interrupts what waits."""
