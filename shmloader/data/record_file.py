"""
Files of records: built in memory or on a disk, opened, and on their way to other processes.

core/records.pyx says what lies in a file after its header. The header is written last, and a file
on a disk gets its name last, so there is none that is half written.
"""

import contextlib
import copyreg
import errno
import multiprocessing.context
import os
import pickle
import secrets
import struct
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import reduction
from typing import Any, NamedTuple

from shmloader.core import RecordFile, RecordWriter
from shmloader.errors import add_note
from shmloader.memory.account import account
from shmloader.memory.growing import Growing

Progress = Callable[[int, int], object]

IN_MEMORY = "a list in memory"

_MAGIC = b"shmlist\n"
_VERSION = 2
_ORDER = 0x01020304  # as the machine that wrote the file has it
# Magic, version, order, records, length of the file; of the names offset, length, checksum; of the
# table offset, checksum.
_HEADER = struct.Struct("=8sIIQQQQIQI")
_CHECKSUM = struct.Struct("=I")
_HEADER_BYTES = 128

_EVERY_S = 1.0  # between two calls of progress
_LOOK_EVERY = 1024  # records
_COPY_BYTES = 64 << 20


class Header(NamedTuple):
    """What the header of a file says, as far as others need it."""

    records: int
    total_bytes: int
    names_at: int
    names_bytes: int
    names_sum: int
    table_at: int
    table_sum: int

    def pack(self) -> bytes:
        """Write it."""
        packed = _HEADER.pack(_MAGIC, _VERSION, _ORDER, *self)
        return (packed + _CHECKSUM.pack(zlib.crc32(packed))).ljust(_HEADER_BYTES, b"\0")


def build(records: Iterable[Any], progress: Progress | None, *, of_each: int = 1) -> RecordFile:
    """
    Write records into shared memory.

    Args:
        of_each: How many are of one item of the user's, whose number an error has as a note.
    """
    with contextlib.closing(Growing()) as growing:
        header = _write(records, growing.write, progress, of_each)
        growing.seal(header.pack())
        made = _map(os.dup(growing.descriptor), IN_MEMORY, header)
    account().enter_keeper(made)
    return made


def pack(records: Iterable[Any], path: str, progress: Progress | None) -> None:
    """Write records into a file on a disk; there is a file of that name when all are written."""
    with _replacing(path) as file:

        def append(part: memoryview) -> None:
            while part:
                part = part[os.write(file, part) :]

        header = _write(records, append, progress)
        os.pwrite(file, header.pack(), 0)


def copy_to(source: RecordFile, path: str) -> None:
    """Copy a file of records to a disk."""
    descriptor = source.descriptor
    if descriptor is None:
        raise ValueError("this process has closed the list, or all of its descriptors")
    with _replacing(path) as file:
        at = 0
        while at < source.bytes:
            count = os.sendfile(file, descriptor, at, min(_COPY_BYTES, source.bytes - at))
            if count == 0:
                raise OSError(errno.EIO, f"{source.name} became shorter while it was copied", path)
            at += count


def open_path(path: str) -> RecordFile:
    """Map a file."""
    return _map(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)


def read_header(descriptor: int, name: str) -> Header:
    """Read a header, and compare it with its checksum and with the length of the file."""
    packed = os.pread(descriptor, _HEADER_BYTES, 0)
    found_bytes = os.fstat(descriptor).st_size
    header = _unpacked(packed, found_bytes, name)
    if header.total_bytes != found_bytes:
        raise ValueError(
            f"{name} has {found_bytes} bytes, and {header.total_bytes} by its header: the file "
            "was cut off, or something was appended"
        )
    if header.records > found_bytes:  # each has a tag
        raise ValueError(f"{name} is damaged: {header.records} records in {found_bytes} bytes")
    return header


def _unpacked(packed: bytes, found_bytes: int, name: str) -> Header:
    if packed[: len(_MAGIC)] != _MAGIC:
        start = packed[: len(_MAGIC)]
        raise ValueError(f"{name} is not a file of a SharedList: it begins with {start!r}")
    if len(packed) < _HEADER_BYTES:
        raise ValueError(f"{name} was cut off: it has {found_bytes} bytes, of {_HEADER_BYTES}")
    _, version, order, *fields = _HEADER.unpack_from(packed)
    if order != _ORDER:
        raise ValueError(f"{name} was written on a machine that is not {sys.byteorder}-endian")
    if version != _VERSION:
        raise ValueError(
            f"{name} is of version {version}, and this shmloader reads version {_VERSION}: write "
            "the file again"
        )
    (checksum,) = _CHECKSUM.unpack_from(packed, _HEADER.size)
    if zlib.crc32(packed[: _HEADER.size]) != checksum:
        raise ValueError(f"{name} is damaged: its header does not match its checksum")
    return Header(*fields)


def _map(descriptor: int, name: str, header: Header | None = None) -> RecordFile:
    """Map a file by a descriptor that is closed with it, or if it cannot be mapped."""
    try:
        records, total_bytes, *parts = header or read_header(descriptor, name)
        return RecordFile(descriptor, name, total_bytes, records, *parts)
    except BaseException:
        os.close(descriptor)
        raise


def _write(
    records: Iterable[Any],
    append: Callable[[memoryview], None],
    progress: Progress | None,
    of_each: int = 1,
) -> Header:
    writer = RecordWriter(append)
    next_s = time.monotonic() + _EVERY_S
    for record in records:
        try:
            writer.append(record)
        except (OSError, MemoryError):
            raise  # of the room for it
        except Exception as error:
            add_note(error, f"in record {writer.count // of_each}, counted from 0")
            raise
        if writer.count % _LOOK_EVERY == 0 and progress is not None and time.monotonic() > next_s:
            next_s = time.monotonic() + _EVERY_S
            progress(writer.count, writer.position)
    parts = writer.finish()
    if progress is not None:
        progress(writer.count, writer.position)
    return Header(writer.count, writer.position, *parts)


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[int]:
    """Write a file beside the one of that name, and put it in its place once it is on the disk."""
    fresh = f"{path}.{secrets.token_hex(4)}.new"
    file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


# Files that have come to this process, by device and inode: a second arrival shares the mapping,
# and under spawn it is the same number of the same descriptor.
_arrived: weakref.WeakValueDictionary[tuple[int, int], RecordFile] = weakref.WeakValueDictionary()


def _reduce(file: RecordFile) -> tuple[Any, ...]:
    """Send a file as a descriptor while a process is started, otherwise as a path."""
    if file.is_closed:
        raise pickle.PicklingError("this list was closed")
    descriptor = file.descriptor
    if multiprocessing.context.get_spawning_popen() is not None and descriptor is not None:
        return _receive, (reduction.DupFd(descriptor), file.name)
    if file.name == IN_MEMORY:
        raise pickle.PicklingError(
            "a SharedList in memory reaches another process only when that process is started: by "
            "fork, or as an argument of multiprocessing's Process(). For a queue, a task of a "
            "pool or a file, call to_file(), and send SharedList.from_file(), which pickles as "
            "its path"
        )
    header = read_header(descriptor, file.name) if descriptor is not None else None
    return _open_again, (os.path.abspath(file.name), header)


def _receive(duplicate: Any, name: str) -> RecordFile:
    descriptor: int = duplicate.detach()
    status = os.fstat(descriptor)
    key = status.st_dev, status.st_ino
    known = _arrived.get(key)
    if known is not None and known.descriptor is not None:
        if known.descriptor != descriptor:
            os.close(descriptor)
        return known
    os.set_inheritable(descriptor, False)
    file = _map(descriptor, name)
    _arrived[key] = file
    return file


def _open_again(path: str, header: Header | None) -> RecordFile:
    file = open_path(path)
    assert file.descriptor is not None  # it was opened just now
    if header is not None and read_header(file.descriptor, path) != header:
        raise ValueError(f"{path} is another file than the one whose SharedList was pickled")
    return file


copyreg.pickle(RecordFile, _reduce)
