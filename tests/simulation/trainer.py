"""The trainer's process of a run: it is forked for it, and forks all the others."""

from __future__ import annotations

import contextlib
import ctypes
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

from shmloader.transport import looking
from tests.simulation.case import Case
from tests.simulation.checks import Wrong, check_threads
from tests.simulation.door import Door
from tests.simulation.lines import Lines
from tests.simulation.pool_user import PoolUser
from tests.simulation.publish_user import PublishUser
from tests.simulation.seats_user import SeatsUser
from tests.simulation.user import User
from tests.simulation.waits import Waits

WELL = "well"
_TEXT_BYTES = 60_000
_PR_SET_PDEATHSIG = 1
_USERS: dict[str, type[User | PoolUser | PublishUser]] = {
    "squares": User,
    "seats": SeatsUser,
    "pool": PoolUser,
    "publisher": PublishUser,
}


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

    def outcome(self, within_s: float, is_stuck: Callable[[], bool]) -> str | None:
        """
        Wait for what comes of the run.

        Args:
            within_s: After so many seconds, and again after as many, it is asked if
            is_stuck: which is called for that.

        Returns:
            What was wrong or that it went WELL; None: it hangs.
        """
        while not select.select([self._channel, self._end], [], [], within_s)[0]:
            if is_stuck():
                return None
        with contextlib.suppress(OSError):  # it may have died
            return self._channel.recv(1 << 17, socket.MSG_DONTWAIT).decode(errors="replace")
        return ""

    def end(self) -> None:
        """Kill it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._end)
        self._channel.close()


class Run:
    """What that process does."""

    def __init__(self, case: Case, door: Door, waits: Waits, package: Path) -> None:
        self._case, self._door, self._waits, self._package = case, door, waits, package

    def play(self, channel: socket.socket) -> None:
        """Play the case, and say what came of it."""
        os.setsid()
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the theatre
        warnings.simplefilter("ignore")
        gc.disable()
        gc.freeze()
        text = WELL
        try:
            self._simulate()
        except BaseException:
            text = traceback.format_exc()
        channel.send(text.encode()[-_TEXT_BYTES:])
        os._exit(0)

    def _simulate(self) -> None:
        os.environ["SHMLOADER_DEBUG"] = str(int(self._case.is_guarded))
        random.seed(self._case.seed)
        before = _open_descriptors()
        self._go_through()
        gc.collect()
        check_threads()
        after = _open_descriptors()
        if left := len(after) - len(before):
            raise Wrong(f"{left} descriptors are left: {[*map(_file_of, after - before)]}")

    def _go_through(self) -> None:
        case = self._case
        looking.may_look = lambda: case.looks
        self._door.open()
        lines = Lines(self._door, self._package, case.interrupts)
        user = _USERS[case.client](case, self._door, self._waits, lines)
        if case.has_lines:
            lines.begin()
        try:
            user.play()
        finally:
            lines.end()
            self._door.close()


def runs(pid: int) -> bool:
    """Returns True if a process runs; one that is to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _open_descriptors() -> set[int]:
    list_itself = os.dup(0)  # the lowest number that is free
    os.close(list_itself)
    return {int(name) for name in os.listdir("/proc/self/fd")} - {list_itself}


def _file_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
