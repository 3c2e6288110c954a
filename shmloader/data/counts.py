"""
Hits and misses of a run, in a file of which each process has a line of its own.

A line has one writer, so there is no lock between processes, and what a killed worker counted
stays. The file is deleted with the object that made it; what a killed trainer left is swept later.
"""

import contextlib
import os
import struct
import tempfile
import threading
import time
import weakref

_LINE = struct.Struct("<QQ")  # hits, misses
_PREFIX = "counts."
_SWEEP_AFTER_S = 7 * 86400.0


class Counts:
    """Counts in all processes that have this object, by fork or by pickle."""

    def __init__(self, path: str) -> None:
        """Count in a file, which may be gone: then nothing is counted."""
        self._path = path
        self._line: _OwnLine | None = None

    @classmethod
    def made_in(cls, folder: str) -> "Counts":
        """Make a new file, and delete those that nothing has counted in for a week."""
        _sweep(folder)
        file, path = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        os.close(file)
        counts = cls(path)
        weakref.finalize(counts, _delete, path, os.getpid())
        return counts

    def __reduce__(self) -> tuple[type["Counts"], tuple[str]]:
        return Counts, (self._path,)

    def add(self, hits: int = 0, misses: int = 0) -> None:
        """Count, on any thread."""
        line = self._line
        if line is None or line.pid != os.getpid():  # first use here, or in a forked child
            line = self._line = _OwnLine(self._path)
        line.add(hits, misses)

    def totals(self) -> tuple[int, int]:
        """Return hits and misses of all processes."""
        try:
            with open(self._path, "rb") as file:
                packed = file.read()
        except OSError:
            return 0, 0
        whole = packed[: len(packed) // _LINE.size * _LINE.size]
        lines = list(_LINE.iter_unpack(whole))
        return sum(hits for hits, _ in lines), sum(misses for _, misses in lines)


class _OwnLine:
    """A process's own line; threads that come first at once may have one each."""

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self._turn = threading.Lock()
        self._hits = self._misses = 0
        self._file = -1
        with contextlib.suppress(OSError):
            self._offset = _append(path)
            self._file = os.open(path, os.O_WRONLY)
            weakref.finalize(self, os.close, self._file)

    def add(self, hits: int, misses: int) -> None:
        with self._turn:
            self._hits += hits
            self._misses += misses
            if self._file >= 0:
                with contextlib.suppress(OSError):
                    os.pwrite(self._file, _LINE.pack(self._hits, self._misses), self._offset)


def _append(path: str) -> int:
    """Add a line, which no two processes do at the same place. Returns where it begins."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, bytes(_LINE.size))
        return os.lseek(file, 0, os.SEEK_CUR) - _LINE.size
    finally:
        os.close(file)


def _sweep(folder: str) -> None:
    oldest = time.time() - _SWEEP_AFTER_S
    for each in os.scandir(folder):
        if each.name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                if each.stat().st_mtime < oldest:
                    os.unlink(each.path)


def _delete(path: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has a copy of the object, and may outlive it
        with contextlib.suppress(OSError):
            os.unlink(path)
