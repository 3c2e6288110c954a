"""
The waits and clocks of Python, made the simulation's in all processes of a run.

Which waits there are is known from the sources: a process that waited in the kernel with the turn
in hand would end the run by its limit in real time, and be seen in its stack.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from multiprocessing import connection, popen_fork
from typing import Any

from tests.simulation.door import Door

_DEADLY = (signal.SIGKILL, signal.SIGTERM)

_exit, _kill, _monotonic, _sleep, _wait = (
    *(os._exit, os.kill, time.monotonic, time.sleep),
    connection.wait,
)
_wait_for_end = popen_fork.Popen.wait


class Closed:
    """A door before there is one."""

    is_open = False


class Waits:
    """What is put in the place of functions of the standard library."""

    def __init__(self) -> None:
        """
        Hear of forks from now on.

        Before the package is imported, so that a child has its turn before the package's hooks run.
        """
        self._door: Any = Closed()
        self._reserved = 0
        self._poll: Any = None
        self.may_die = True  # the process that is forked next
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    def put_in_place(self, door: Door) -> None:
        """Do so, in this process and all that it forks; with a closed door all is as before."""
        self._door = door
        os._exit = self.exit
        os.kill = self.kill
        time.monotonic = self.monotonic
        time.sleep = self.sleep
        connection.wait = self.wait
        popen_fork.Popen.wait = lambda *args: self.wait_for_end(*args)  # type: ignore[method-assign]

        from shmloader import core
        from shmloader.memory import limits, page_locks
        from shmloader.processes import forking, watching
        from shmloader.publishing import meeting

        self._poll = core.poll
        watching.poll = forking.poll = meeting.poll = page_locks.poll = self.poll
        limits.available = lambda: None
        limits.available_bytes = lambda: None

    # Forks

    def _before_fork(self) -> None:
        if self._door.is_open:
            self._reserved = self._door.reserve(self.may_die)

    def _in_parent(self) -> None:
        if self._door.is_open:
            self._door.line(0)  # the child may go on first

    def _in_child(self) -> None:
        if self._door.is_open:
            self._door.arrive(self._reserved)

    # Ends

    def exit(self, code: int) -> None:
        """End this process; the others go on once it is gone."""
        if self._door.is_open:
            self._door.leave()
        _exit(code)

    def kill(self, pid: int, number: int) -> None:
        """Send a signal; SIGTERM ends a process at once, too, as it does workers."""
        if not self._door.is_open or number not in _DEADLY:
            _kill(pid, number)
            return
        self._door.meet()
        _kill(pid, signal.SIGKILL)
        self._door.killed(pid)

    # Waits

    def monotonic(self) -> float:
        """The virtual time."""
        return self._door.now_s() if self._door.is_open else _monotonic()

    def sleep(self, for_s: float) -> None:
        """Let others go on for so long."""
        self._door.sleep(for_s) if self._door.is_open else _sleep(for_s)

    def wait(self, objects: Iterable[Any], timeout: float | None = None) -> list[Any]:
        """Wait until one of several objects is ready, as `multiprocessing.connection.wait`."""
        return self.poll(list(objects), timeout) if self._door.is_open else _wait(objects, timeout)

    def wait_for_end(self, process: popen_fork.Popen, timeout: float | None = None) -> int | None:
        """Wait for a process; `multiprocessing` waits in the kernel for one without a limit."""
        if self._door.is_open and timeout is None and process.returncode is None:
            self.wait([process.sentinel])
        return _wait_for_end(process, timeout)

    def poll(
        self,
        descriptors: Collection[Any],
        timeout_s: float | None = 0,
        hanging: Collection[Any] = (),
    ) -> list[Any]:
        """Wait until a descriptor is ready, or nap without any, as `shmloader.core.poll`."""
        if not self._door.is_open or timeout_s == 0:
            return self._poll(descriptors, timeout_s, hanging)
        if not descriptors and timeout_s is not None:
            self._door.sleep(timeout_s)
            return []
        deadline_s = None if timeout_s is None else self._door.now_s() + timeout_s
        has_acted = True
        while not (ready := self._poll(descriptors, 0, hanging)):
            if self._door.look(deadline_s, has_acted):
                return self._poll(descriptors, 0, hanging)
            has_acted = False
        return ready
