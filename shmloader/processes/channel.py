"""
A channel between two processes, for records and descriptors.

Over the C class of sockets, because Python's own class is replaced by libraries: gevent's waits in
its loop even with MSG_DONTWAIT. Without imports of this package, as `proc`.
"""

import _socket
import contextlib
from array import array
from collections.abc import Iterable
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Self

_RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
# With its protocol, or Python asks the kernel for that, which a sandbox may refuse.
_KIND = _socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0


class Channel(_socket.socket):
    """One end, of records that are kept apart, so that none is ever half there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Without a warning, as in a forked child that lets go of it; in C, where nothing interrupts.
    __del__ = _socket.socket.close

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Make both ends of one."""
        one, other = cls._all_of(map(_socket.socket.detach, _socket.socketpair(*_KIND)))
        return one, other

    @classmethod
    def new(cls) -> Self:
        """Make an end that is not connected."""
        return cls._all_of((None,))[0]

    @classmethod
    def of(cls, fileno: int) -> Self:
        """Own a descriptor that is open."""
        return cls._all_of((fileno,))[0]

    def accept(self) -> Self:
        """Take a connection that another process has asked for."""
        accepted = iter(self._accept, None)  # type: ignore[attr-defined]
        return self._all_of(map(itemgetter(0), islice(accepted, 1)))[0]

    @classmethod
    def _all_of(cls, numbers: Iterable[int | None]) -> list[Self]:
        """
        Own descriptors that are made one by one.

        All of it in C, without a bytecode between the number and its owner: an interrupt there
        would leave it open.
        """
        ends = list(map(partial(cls, *_KIND), numbers))
        for end in ends:
            if end.gettimeout():  # the program's, for sockets of its own
                end.settimeout(None)
        return ends

    def say(self, record: bytes, descriptors: list[int]) -> None:
        """
        Send a record and descriptors, at once.

        Raises:
            BlockingIOError: There is no room.
            OSError: The other end is closed, or too many descriptors are under way.
        """
        rights = [(*_RIGHTS, array("i", descriptors))] if descriptors else []
        self.sendmsg([record], rights, _socket.MSG_NOSIGNAL | _socket.MSG_DONTWAIT)

    def hear(self, most_bytes: int, most_descriptors: int) -> tuple[bytes, list[int]]:
        """Take the next record; b"" at the end of all. A blocking end waits for it."""
        numbers = array("i")
        room = _socket.CMSG_SPACE(most_descriptors * numbers.itemsize)
        record, rights, _, _ = self.recvmsg(most_bytes, room)
        for level, kind, data in rights:
            if (level, kind) == _RIGHTS:
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        return record, list(numbers)

    def hear_now(self, most_bytes: int) -> bytes:
        """Take the next record; b"" if none is there, or at the end of all."""
        for _ in range(2):
            # A reset is said once, of what the other end had not read; what it had said comes then.
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                return self.recv(most_bytes, _socket.MSG_DONTWAIT)
        return b""

    def shut(self) -> None:
        """End what this end says."""
        self.shutdown(_socket.SHUT_WR)
