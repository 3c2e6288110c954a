"""
The waits and clocks of Python, made the simulation's in all processes of a run.

Which waits there are is known from the sources: a process that waited in the kernel with the turn
in hand would end the run by its limit in real time, and be seen in its stack.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any

from tests.simulation.door import Door

_DEADLY = (signal.SIGKILL, signal.SIGTERM)

_exit, _kill, _monotonic, _sleep, _wait = (
    *(os._exit, os.kill, time.monotonic, time.sleep),
    connection.wait,
)


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

        from shmloader.memory import limits
        from shmloader.processes import forking, watching
        from shmloader.publishing import meeting

        polls = SimpleNamespace(poll=lambda: Poll(self._door), POLLIN=select.POLLIN)
        watching.select = forking.select = meeting.select = polls
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

    def begin(self, give: Callable[[int], object]) -> None:
        """Have a process begin that was forked before: it is given its number in the run."""
        give(self._door.reserve(self.may_die))
        self._door.line(0)  # as after a fork

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
        if not self._door.is_open:
            return _wait(objects, timeout)
        listed = list(objects)
        deadline_s = None if timeout is None else self._door.now_s() + timeout
        has_acted = True
        while not (ready := _ready(listed)):
            if timeout is not None and timeout <= 0:
                break
            if self._door.look(deadline_s, has_acted):
                return _ready(listed)
            has_acted = False
        return ready


def _ready(objects: list[Any]) -> list[Any]:
    """List those that are ready; not by the library's wait, which waits for its clock to go on."""
    looks = select.poll()
    by_number = {each if isinstance(each, int) else each.fileno(): each for each in objects}
    for number in by_number:
        looks.register(number, select.POLLIN)
    return [by_number[number] for number, _ in looks.poll(0)]


class Poll:
    """`select.poll()`, as it is used here: of descriptors, or a nap without any."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._real = select.poll()
        self._is_nap = True

    def register(self, *arguments: Any) -> None:
        """Wait for a descriptor."""
        self._is_nap = False
        self._real.register(*arguments)

    def poll(self, timeout_ms: float) -> list[Any]:
        """Wait until one is ready, or nap."""
        if not self._door.is_open or timeout_ms <= 0:
            return self._real.poll(timeout_ms)
        if self._is_nap:
            self._door.sleep(timeout_ms / 1000)
            return []
        deadline_s = self._door.now_s() + timeout_ms / 1000
        has_acted = True
        while not (ready := self._real.poll(0)):
            if self._door.look(deadline_s, has_acted):
                return self._real.poll(0)
            has_acted = False
        return ready
