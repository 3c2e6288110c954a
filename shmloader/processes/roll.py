"""
The roll: what happened in a nursery, in a file to which each of its processes only appends.

The kernel appends one record after the other, so the first record of an order decides which process
is the worker that was ordered, no matter which process forked it or died meanwhile. Records stay,
so the trainer reads on where it left off, however often.
"""

import contextlib
import enum
import fcntl
import os
import struct
from multiprocessing import reduction
from typing import Any, NamedTuple

from shmloader.processes import watching

_RECORD = struct.Struct("<5q")
RECORD_BYTES = _RECORD.size
_PIECE = 1000 * RECORD_BYTES


class Event(enum.IntEnum):
    """What a record says."""

    JOINED = 1  # the process belongs to the nursery
    ACTIVE = 2  # the process takes orders from now on
    CLAIMED = 3  # the process is the worker that was ordered, if no record of that order came first
    FAILED = 4  # no process could be started for the order; the code is the errno
    ENDED = 5  # the process has ended, with that exit code


class Record(NamedTuple):
    """
    One record.

    Attributes:
        event: An Event.
        number: Of the order, or 0.
        pid: Of the process that it is about, or 0.
        started: When that process started, in the kernel's ticks; 0 if the kernel does not say.
        code: An errno or exit code, or 0.
    """

    event: int
    number: int
    pid: int
    started: int
    code: int

    @property
    def start_time(self) -> str | None:
        """When the process started, as `watching` has it."""
        return str(self.started) if self.started else None


class Roll:
    """The file, in any process that has its descriptor."""

    def __init__(self) -> None:
        """Make an empty one."""
        self._descriptor = os.memfd_create("shmloader-roll", os.MFD_CLOEXEC)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, os.O_APPEND)

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._descriptor)

    def __setstate__(self, duplicate: Any) -> None:
        self._descriptor = duplicate.detach()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close this process's descriptor; nothing more can be read then."""
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    @property
    def end(self) -> int:
        """Bytes written so far; also the place of the next record."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int) -> list[Record]:
        """Read all records from a place on; none if it is closed."""
        records: list[Record] = []
        while self._descriptor >= 0:
            piece = os.pread(self._descriptor, _PIECE, offset)
            if not piece:
                break
            records.extend(map(Record._make, _RECORD.iter_unpack(piece)))
            offset += len(piece)
        return records

    def add(self, event: Event, number: int = 0, pid: int = 0, code: int = 0) -> Record:
        """Append a record, about a process with its start time."""
        started = int(watching.start_time(pid) or 0) if pid else 0
        record = Record(event, number, pid, started, code)
        os.write(self._descriptor, _RECORD.pack(*record))
        return record

    def claim(self, number: int, since: int) -> bool:
        """
        Claim an order for this process.

        Args:
            since: A place in the roll before which it cannot have been claimed.

        Returns:
            True if the order is this process's, even if its parent has claimed it for it.
        """
        claim = self.add(Event.CLAIMED, number, os.getpid())
        return claim == next(
            record
            for record in self.read(since)
            if record.number == number and record.event in (Event.CLAIMED, Event.FAILED)
        )
