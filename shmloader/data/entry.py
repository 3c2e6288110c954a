"""
A value as a file: a header with its length and checksum, then its bytes.

The checksum begins with the file's name, so a file that has another one's name is damaged too.
"""

import contextlib
import os
import struct
import time
import zlib

_HEADER = struct.Struct("<8sQI4x")  # magic, length, checksum
_MAGIC = b"shmload1"
_BLOCK_BYTES = 4096  # what most file systems give to a file is a multiple of this


def path_of(folder: str, name: str) -> str:
    """Return where the value of a name lies: 256 folders keep each of them short."""
    return os.path.join(folder, name[:2], name[2:])


def file_bytes(length: int) -> int:
    """Return how long the file of a value is, in bytes."""
    return _HEADER.size + length


def taken_bytes(length: int) -> int:
    """Return what a file of some length takes on a disk, in bytes."""
    return -(-length // _BLOCK_BYTES) * _BLOCK_BYTES


def read(path: str, name: str, since_ns: int) -> bytes | None:
    """Read a value; None if it is damaged. A file last used before `since_ns` is touched."""
    with open(path, "rb", buffering=0) as file:
        header = file.read(_HEADER.size)
        value = file.readall()
        if not _is_whole(header, value, name):
            return None
        if os.fstat(file.fileno()).st_mtime_ns < since_ns:
            _touch(file.fileno())
    return value


def _is_whole(header: bytes, value: bytes, name: str) -> bool:
    if len(header) < _HEADER.size:
        return False
    magic, length, checksum = _HEADER.unpack(header)
    return bool(magic == _MAGIC and length == len(value) and checksum == _checksum(value, name))


def _touch(descriptor: int) -> None:
    # The kernel's own time is that of its last tick, which may be before this run began.
    now_ns = time.time_ns()
    # Another user's file, or a disk that became read-only: it seems older than it is.
    with contextlib.suppress(OSError):
        try:
            os.utime(descriptor, ns=(now_ns, now_ns))
        except PermissionError:  # who may write it may set no other time than the kernel's
            os.utime(descriptor)


def _checksum(value: bytes, name: str) -> int:
    return zlib.crc32(value, zlib.crc32(name.encode()))


def write(descriptor: int, name: str, value: bytes) -> None:
    """Write a value from the beginning of a file."""
    with open(descriptor, "wb", closefd=False) as file:
        file.write(_HEADER.pack(_MAGIC, len(value), _checksum(value, name)))
        file.write(value)
