"""
The order and the sizes of the values in a folder: a file of records, the oldest first.

A record is written before its file is, and taken away after its file is deleted. So a file without
a record never exists, and whatever is killed when, the files take at most what the records say. A
record without a file counts until it is the oldest; that is all that a kill costs.

The header says which records count. It is written by one call after them, so a kill leaves the
header before or the header after. It names the machine's boot: after a crash of the system, which
may keep later writes and lose earlier ones, and after damage, the records are made anew from the
files. All functions want the folder's lock, except `total_bytes`.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from shmloader.memory import groups

_HEADER = struct.Struct("<8s36sQQQ")  # magic, boot, first record, end of the records, total bytes
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_RECORD = struct.Struct("<20sQ")  # name, bytes; a checksum follows
_RECORD_BYTES = _RECORD.size + _CHECKSUM.size
_MAGIC = b"shmindx1"
_COMPACT_AFTER = 4096  # records before the first, when they are also more than half of the file
_BOOT = "/proc/sys/kernel/random/boot_id"


class DamagedIndex(Exception):
    """A record is not what was written. The index is empty now, and made anew at its next use."""


class KeptValue(NamedTuple):
    """A value that may be kept."""

    name: str
    taken_bytes: int


class Index:
    """The records of a folder, for as long as its lock is held."""

    def __init__(self, path: str) -> None:
        """Open the file, an empty one if there is none."""
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._first = self._end = self.total_bytes = 0

    def close(self) -> None:
        """Close the file; what was not committed has not happened."""
        os.close(self._file)

    def load(self) -> bool:
        """Read the header. Returns False if it cannot be trusted."""
        header = _read_header(self._file)
        if header is None:
            return False
        self._first, self._end, self.total_bytes = header
        return os.fstat(self._file).st_size >= self._offset(self._end)

    def __len__(self) -> int:
        """How many records there are."""
        return self._end - self._first

    def replace(self, records: Iterator[KeptValue]) -> None:
        """Put these records in the place of all that there are."""
        fresh = Index(f"{self._path}.new")
        os.ftruncate(fresh._file, 0)
        for record in records:
            fresh.append(record)
        fresh.commit()
        os.rename(fresh._path, self._path)
        self.close()
        self._file = fresh._file
        self._first, self._end, self.total_bytes = fresh._first, fresh._end, fresh.total_bytes

    def append(self, record: KeptValue) -> None:
        """Add a record as the newest."""
        packed = _RECORD.pack(bytes.fromhex(record.name), record.taken_bytes)
        os.pwrite(self._file, _summed(packed), self._offset(self._end))
        self._end += 1
        self.total_bytes += record.taken_bytes

    def take_oldest(self) -> KeptValue:
        """Take the oldest record away, and return it, unless it was damaged."""
        record = self._read(self._first)
        self._first += 1
        self.total_bytes -= record.taken_bytes
        return record

    def commit(self) -> None:
        """Make it so for all processes."""
        if self._first >= max(_COMPACT_AFTER, len(self)):
            self.replace(self._read(number) for number in range(self._first, self._end))
            return
        header = _HEADER.pack(_MAGIC, _boot(), self._first, self._end, self.total_bytes)
        os.pwrite(self._file, _summed(header), 0)

    def _read(self, number: int) -> KeptValue:
        packed = os.pread(self._file, _RECORD_BYTES, self._offset(number))
        if len(packed) < _RECORD_BYTES or packed != _summed(packed[: _RECORD.size]):
            os.ftruncate(self._file, 0)
            raise DamagedIndex
        name, taken_bytes = _RECORD.unpack_from(packed)
        return KeptValue(name.hex(), taken_bytes)

    def _offset(self, number: int) -> int:
        return _HEADER_BYTES + number * _RECORD_BYTES


def total_bytes(path: str) -> int:
    """Return what the records say that the files take; without the lock, so it may be of before."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = _read_header(file.fileno())
    except OSError:
        return 0
    return header[2] if header is not None else 0


def _read_header(file: int) -> tuple[int, int, int] | None:
    """Read first, end and total bytes; None if the header is damaged, or of another boot."""
    packed = os.pread(file, _HEADER_BYTES, 0)
    if len(packed) < _HEADER_BYTES or packed != _summed(packed[: _HEADER.size]):
        return None
    magic, boot, first, end, total = _HEADER.unpack_from(packed)
    return (first, end, total) if (magic, boot) == (_MAGIC, _boot()) else None


def _summed(packed: bytes) -> bytes:
    """Add a checksum."""
    return packed + _CHECKSUM.pack(zlib.crc32(packed))


def _boot() -> bytes:
    """Name the time since the machine was started."""
    return groups.read_text(_BOOT)[:36].encode() or bytes(36)
