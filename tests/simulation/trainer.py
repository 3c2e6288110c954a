"""
The trainer's process: it plays one run after the other, or one alone for which all is forked anew.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import random
import select
import signal
import socket
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmloader.transport import looking
from tests.simulation import company
from tests.simulation.case import Case
from tests.simulation.company import Company
from tests.simulation.door import Door, Play
from tests.simulation.lines import Lines
from tests.simulation.waits import Waits

WELL = "well"
_CASE_BYTES = 1 << 16
_TEXT_BYTES = 60_000


class Trainer:
    """The theatre's end."""

    def __init__(self, be: Callable[[socket.socket], None]) -> None:
        """Fork it; it calls what is given with its own end of the channel, and ends."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._channel.close()
                be(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        self._end = os.pidfd_open(self._pid)

    def play(self, case: Case, within_s: float, is_stuck: Callable[[], bool]) -> str | None:
        """
        Have a case played.

        Args:
            case: What to play.
            within_s: After so many seconds, and again after as many, it is asked if
            is_stuck: which is called for that.

        Returns:
            What was wrong or that it went WELL; None: it hangs.
        """
        with contextlib.suppress(OSError):  # it may be dead
            self._channel.send(case.says().encode())
            while not select.select([self._channel, self._end], [], [], within_s)[0]:
                if is_stuck():
                    return None
            return self._channel.recv(1 << 17, socket.MSG_DONTWAIT).decode(errors="replace")
        return ""

    def end(self) -> None:
        """Kill it, and with it those that it has forked to live on."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._end)
        self._channel.close()


class Runs:
    """What that process does."""

    def __init__(self, play: Play, door: Door, waits: Waits, package: Path, lives_on: bool) -> None:
        """Be a trainer, with processes that live on or without."""
        os.setsid()
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        company.end_with_parent()
        self._play, self._door, self._waits, self._package = play, door, waits, package
        self._company = Company(door, waits) if lives_on else None
        warnings.simplefilter("ignore")
        gc.disable()
        gc.freeze()

    def serve(self, channel: socket.socket) -> None:
        """Play the cases that come, until one fails."""
        text = WELL
        while text == WELL and (said := channel.recv(_CASE_BYTES)):
            try:
                self._simulate(eval(said, {"Case": Case}))
            except BaseException:
                text = traceback.format_exc()
            channel.send(text.encode()[-_TEXT_BYTES:])
        os._exit(0)

    def _simulate(self, case: Case) -> None:
        from tests.simulation.checks import Wrong, check_threads

        os.environ["SHMLOADER_DEBUG"] = str(int(case.is_guarded))
        random.seed(case.seed)
        if self._company:
            self._company.lend(case.processes)
        before = company.open_descriptors()
        self._go_through(case)
        gc.collect()
        died, playing = self._company.take_back() if self._company else (0, 0)
        check_threads()
        after = company.open_descriptors()
        if left := len(after) + died - len(before):
            raise Wrong(f"{left} descriptors are left: {[*map(_file_of, after - before)]}")
        playing += self._count_others() if self._company else 0
        if playing:
            raise Wrong(f"{playing} processes are left")

    def _go_through(self, case: Case) -> None:
        from tests.simulation import users

        looking.may_look = lambda: case.looks
        self._door.open()
        lines = Lines(self._door, self._package, case.interrupts)
        user = users.of(case)(case, self._door, self._waits, lines)
        if case.has_lines:
            lines.begin()
        try:
            user.play()
        finally:
            lines.end()
            self._door.close()

    def _count_others(self) -> int:
        """Count the processes of the run that still run and were not there before it."""
        assert self._company is not None, "otherwise the theatre does"
        known: set[Any] = {os.getpid(), *self._company.pids()}
        return sum(1 for pid in self._play.pids() if pid not in known and runs(pid))


def runs(pid: int) -> bool:
    """Returns True if a process runs; one that is to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _file_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
