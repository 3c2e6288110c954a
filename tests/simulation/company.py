"""
Processes that live on from run to run: a worker of one run is a worker of the next, or its nursery.

To fork a process and to have it end takes longer than all else in a run. So the processes that a
run begins with are lent to it: one that has done its part gives up what it has open and mapped, as
the kernel would at its end, and waits for the next run. What a run starts later is forked, and so
is another process in the place of each that has died.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import re
import signal
import socket
import traceback
from collections.abc import Callable
from multiprocessing import reduction, util
from typing import Any, ClassVar, NoReturn

from shmloader.processes import nursery_process, starting, watching
from shmloader.processes.channel import Channel
from shmloader.processes.sealed import Collector, pickled_for
from tests.simulation.door import Door
from tests.simulation.waits import Waits

# Forked together: after a fork this process copies each page that it writes to, once for all.
_AT_ONCE = 12
_PART_BYTES = 1 << 17
_MOST_DESCRIPTORS = 64
_WORD = 4  # bytes of a number in a message
_PR_SET_PDEATHSIG = 1
_SEGMENT = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .*/memfd:shmloader \(deleted\)$", re.MULTILINE)

_libc = ctypes.CDLL(None)
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def end_with_parent() -> None:
    """Have this process killed when the one that has forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def open_descriptors() -> set[int]:
    """List what this process has open."""
    list_itself = os.dup(0)  # the lowest number that is free
    os.close(list_itself)
    return {int(name) for name in os.listdir("/proc/self/fd")} - {list_itself}


class Sent:
    """A descriptor in a part, by its place among those that come with it."""

    came: ClassVar[list[int]] = []  # while a part is unpickled

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """Return a descriptor for the one who asks."""
        return os.dup(self.came[self._place])


def _reduced(channel: Channel) -> tuple[Any, ...]:
    return _rebuilt, (reduction.DupFd(channel.fileno()),)


def _rebuilt(descriptor: Any) -> Channel:
    return Channel.of(descriptor.detach())


reduction.ForkingPickler.register(Channel, _reduced)


class Absent:
    """In a part: an endpoint that only a fork would have brought along."""

    def close(self) -> None:
        """It is not open."""


class Actor:
    """
    The trainer's end of a process that lives on.

    Attributes:
        pid: The process.
        channel: Parts go out, and the exit code that each ends with comes back.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.parts = 0  # that it was given so far
        self._code: int | None = None

    def give(self, number: int, process: Any, sentinel: int) -> None:
        """Have it be a process of multiprocessing, as that number of the run."""
        self.parts, self._code = self.parts + 1, None
        arguments = list(process._args)
        if process._target is nursery_process.run:
            arguments[-1] = Absent()
        collector = Collector(Sent)
        part = pickled_for(collector, (process._target, arguments))
        word = number.to_bytes(_WORD, "little")
        socket.send_fds(self.channel, [word, part], [sentinel, *collector.numbers])

    @property
    def code(self) -> int | None:
        """The exit code; None while it plays its part, or if it was killed."""
        if self._code is None:
            try:
                word = self.channel.recv(_WORD, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionError):
                word = b""
            self._code = int.from_bytes(word, "little", signed=True) if word else None
        return self._code

    def is_gone(self) -> bool:
        """Returns True if it has ended, and reaps it."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG) is not None
        except ChildProcessError:
            return True


class Lent(starting.Child):
    """As multiprocessing has a process that it has forked."""

    def __init__(self, actor: Actor, waits: Waits, process: Any) -> None:
        self._actor, self._waits, self._part = actor, waits, actor.parts + 1
        super().__init__(process)

    def _launch(self, process_obj: Any) -> None:
        self.pid = self._actor.pid
        self.sentinel, theirs = os.pipe()
        self.finalizer = util.Finalize(self, util.close_fds, (self.sentinel,))
        try:
            self._waits.begin(lambda number: self._actor.give(number, process_obj, theirs))
        finally:
            os.close(theirs)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None while the process plays its part."""
        if self.returncode is None and self._actor.parts == self._part:
            self.returncode = self._actor.code
        return super().poll(flag)


class Company:
    """The processes of a trainer that live on."""

    def __init__(self, door: Door, waits: Waits) -> None:
        """Lend none yet."""
        self._door, self._waits = door, waits
        self._idle: list[Actor] = []
        self._lent: list[Actor] = []
        self._to_lend = 0
        self._fork: Callable[[Any], Any] = starting.Child
        starting.Child = self._start  # type: ignore[assignment, misc]

    def lend(self, count: int) -> None:
        """Lend so many to the run that is to begin: those that it starts first."""
        if len(self._idle) < count:
            self._idle += [self._new() for _ in range(_AT_ONCE)]
        self._to_lend = count

    def _start(self, process: Any) -> Any:
        """Start a process of multiprocessing."""
        if self._to_lend == 0:
            return self._fork(process)
        self._to_lend -= 1
        self._lent.append(self._idle.pop())  # the one with the most pages of its own
        return Lent(self._lent[-1], self._waits, process)

    def take_back(self) -> tuple[int, int]:
        """Have those back that were lent. Returns how many have died, and how many still play."""
        self._to_lend = died = 0
        playing = []
        for actor in self._lent:
            if actor.code is not None:
                self._idle.append(actor)
            elif actor.is_gone():
                actor.channel.close()
                died += 1
            else:
                playing.append(actor)
        self._lent = playing
        return died, len(playing)

    def pids(self) -> set[int]:
        """The processes that wait for a part."""
        return {actor.pid for actor in self._idle}

    # In such a process

    def _new(self) -> Actor:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._live(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        return Actor(pid, ours)

    def _live(self, channel: socket.socket) -> NoReturn:
        """Play one part after the other."""
        end_with_parent()
        # That thread would only end this process with the trainer, as the kernel does.
        watching._watched[os.getppid()] = os.getpid(), None
        for actor in self._idle:
            actor.channel.close()
        self._idle.clear()
        gc.freeze()
        before = open_descriptors()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        while True:
            message, came, _, _ = socket.recv_fds(channel, _PART_BYTES, _MOST_DESCRIPTORS)
            if not message:
                os._exit(0)
            self._door.arrive(int.from_bytes(message[:_WORD], "little"))
            code = _play(message[_WORD:], came[1:])
            self._door.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            gc.collect()
            _unmap_segments()
            channel.send(code.to_bytes(_WORD, "little", signed=True))
            # The sentinel among them, after the code.
            for descriptor in open_descriptors() - before:
                os.close(descriptor)
            self._door.retire()


def _play(part: bytes, came: list[int]) -> int:
    """Be a process, as it would be after a fork. Returns its exit code."""
    try:
        Sent.came = came
        target, arguments = pickle.loads(part)
        target(*arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _unmap_segments() -> None:
    """Unmap what a desk leaves mapped until its process ends."""
    with open("/proc/self/maps", "rb") as maps:
        for first, last in _SEGMENT.findall(maps.read()):
            start = int(first, 16)
            _libc.munmap(start, int(last, 16) - start)
