"""
The birth of a worker: a file with what it starts from, to which every process only appends.

The kernel appends one record after the other, and the first one decides: which process is the
worker, or that none will ever be. So an order may be given again and again, and processes that were
forked for it may be late, or die: at most one goes near the ring, and the trainer knows which.

No record crosses a page of the file: across pages the kernel appends piece by piece, and a writer
that is killed between two leaves half of one.
"""

import enum
import fcntl
import os
import struct
from multiprocessing import reduction
from typing import Any, NamedTuple, Self

from shmloader.core import Descriptor
from shmloader.memory import segment
from shmloader.processes import watching

_RECORD = struct.Struct("<4q")  # 32 bytes, which divide a page
_PIECE_BYTES = 4096


class Event(enum.IntEnum):
    """What a record says."""

    BORN = 1  # the process is the worker, if this is the first record
    FAILED = 2  # there will be no worker, if this is the first record; the code is the errno
    ENDED = 3  # the process has ended, with that exit code


class BirthRecord(NamedTuple):
    """One record."""

    event: int  # an Event
    pid: int  # of the process that it is about, or 0
    started: int  # when that process started, in the kernel's ticks; 0 if the kernel does not say
    code: int  # an errno or exit code, or 0


class Birth:
    """The file, in any process that has a descriptor of it."""

    def __init__(self, descriptor: Descriptor, content_bytes: int = 0) -> None:
        self.content_bytes = content_bytes  # where the records begin
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (reduction.DupFd(self.fileno()), self.content_bytes)

    @classmethod
    def make(cls, content: bytes) -> "Birth":
        """Make a file without records."""
        content_bytes = -(-len(content) // _RECORD.size) * _RECORD.size
        birth = cls(segment.open_object("shmloader-birth"), content_bytes)
        with open(birth.fileno(), "wb", closefd=False) as file:
            file.write(content.ljust(birth.content_bytes, b"\0"))
        fcntl.fcntl(birth, fcntl.F_SETFL, os.O_APPEND)
        return birth

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor.fileno()

    def close(self) -> None:
        """Close the descriptor, which otherwise is closed with the last name of this."""
        self._descriptor.close()

    def content(self) -> bytes:
        """What the worker starts from, and zeros after it."""
        return os.pread(self.fileno(), self.content_bytes, 0)

    def records(self) -> list[BirthRecord]:
        """List all whole records: there are one or two for each process that was forked."""
        piece = os.pread(self.fileno(), _PIECE_BYTES, self.content_bytes)
        whole_bytes = len(piece) // _RECORD.size * _RECORD.size
        return list(map(BirthRecord._make, _RECORD.iter_unpack(piece[:whole_bytes])))

    def add(self, event: Event, pid: int = 0, code: int = 0) -> BirthRecord:
        """Append a record, about a process with its start time."""
        started = (pid and watching.start_time(pid)) or 0
        record = BirthRecord(event, pid, started, code)
        os.write(self.fileno(), _RECORD.pack(*record))
        return record

    def claim(self) -> bool:
        """Returns True if this process is the worker, even if its parent has said so already."""
        claim = self.add(Event.BORN, os.getpid())
        first = self.records()[0]
        # Either may have had no descriptor left to look up the start with.
        is_as_old = first.started == claim.started or not (first.started and claim.started)
        return is_as_old and (first.event, first.pid) == (claim.event, claim.pid)


def _receive(duplicate: Any, content_bytes: int) -> Birth:
    return Birth(Descriptor(duplicate.detach()), content_bytes)
