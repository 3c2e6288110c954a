"""
Shared memory for data that stays: written once, from its beginning to its end, then sealed.

It grows as it is written. Nothing bounds a memfd, and a control group kills without an error, so
before each step there is a look at what is left, and the refusal is ours.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from shmloader.errors import OutOfSharedMemory
from shmloader.memory import policy, segment
from shmloader.memory.account import account
from shmloader.memory.limits import Headroom


class Growing:
    """A memory file that is being written; `descriptor` is its number."""

    def __init__(self) -> None:
        self._file = segment.open_object("shmloader-list")
        self.descriptor = self._file.number
        self._written_bytes = 0
        self._headroom = Headroom()

    def write(self, part: memoryview) -> None:
        """Append bytes."""
        while part:
            self._find_room(len(part))
            with self._refusing():
                count = os.write(self.descriptor, part)
            self._written_bytes += count
            part = part[count:]

    def seal(self, header: bytes) -> None:
        """Write over the beginning, and have no process change the file any more."""
        with self._refusing():
            os.pwrite(self.descriptor, header, 0)
        segment.seal(self.descriptor, "WRITE", "SHRINK", "GROW", "SEAL")

    def close(self) -> None:
        """Close it; what others have mapped or duplicated stays."""
        self._file.close()

    def _find_room(self, needed_bytes: int) -> None:
        reserve_bytes = min(policy.LIST_RESERVE_BYTES, self._written_bytes + needed_bytes)
        if not self._headroom.has(needed_bytes, reserve_bytes):
            account().end_shortage(None)
            if not self._headroom.has(needed_bytes, reserve_bytes):
                raise self._refusal(self._headroom.left())

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM):
                raise
            raise self._refusal(f"the kernel refuses more ({error.strerror})") from error

    def _refusal(self, reason: str) -> OutOfSharedMemory:
        return OutOfSharedMemory(
            f"a list of {self._written_bytes / 1e6:.1f} MB so far needs more shared memory, but "
            f"{reason}: write the list to a file with SharedList.pack(), which may be larger than "
            "memory, or raise the limit"
        )
