"""
The folder of values: who may add one, and which ones give way.

    ab/cd...       a value, named by its key; see entry.py
    ab/cd....new   one that is being written, with a flock of the process that does
    index          order and sizes; see index.py
    lock           who changes the index has a flock of it
    counts.*       hits and misses of a run; see counts.py

Values are read without the lock. A flock ends with its process, and each use opens the file anew,
so it excludes threads as well.

A value is written in three steps: room is made and its record written, under the lock; its bytes go
into a file with another name; the file gets its own name. After a kill between them the record
counts for a file that is not whole or not there, until it is the oldest.
"""

import contextlib
import errno
import os
import re
import sys
import time
from collections.abc import Iterator

from shmloader.data import entry
from shmloader.data.index import DamagedIndex, Index, KeptValue, total_bytes
from shmloader.errors import naming

if sys.platform != "win32":  # where downloaded() refuses
    import fcntl

_PATIENCE_S = 1.0  # for the lock; a value that does not get it is not kept
_LONG_PATIENCE_S = 60.0  # when a run begins: the index may be made anew
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.01
_ONE_IN = 8  # new values for which one gives way that this run has used
_LOOK_AT = 64  # records, for one that this run has not used
_NEW = ".new"
_FOLDER_NAME, _FILE_NAME = re.compile("[0-9a-f]{2}"), re.compile(r"[0-9a-f]{38}(\.new)?")


class Shelf:
    """Keeps values by name, up to a number of bytes."""

    def __init__(self, folder: str, max_bytes: int, started_ns: int) -> None:
        """
        Note what is given; nothing is opened.

        Args:
            folder: An absolute path.
            max_bytes: Most bytes that the files of values may take.
            started_ns: When this run began, in ns since 1970: what is used later counts as used.
        """
        self.folder = folder
        self._max_bytes = max_bytes
        self._started_ns = started_ns
        self._spared = 0  # records in a row that this run has used
        self._refused = 0

    def prepare(self) -> None:
        """Make the folder, and delete what is more than its size."""
        try:
            os.makedirs(self.folder, exist_ok=True)
            try:
                self._shrink()
            except DamagedIndex:
                self._shrink()
        except OSError as error:
            text = f"the folder for downloads cannot be used: {error.strerror or error}"
            raise OSError(error.errno, text, self.folder) from error

    def _shrink(self) -> None:
        with self._locked(_LONG_PATIENCE_S) as index:
            if index is None:
                raise OSError(errno.EBUSY, "another process has locked it for a minute")
            self._shrink_to(index, self._max_bytes)
            index.commit()

    def total_bytes(self) -> int:
        """Return what the values take, in bytes."""
        return total_bytes(os.path.join(self.folder, "index"))

    def get(self, name: str) -> bytes | None:
        """Return the value of a name, or None if it is not there; a damaged one is deleted."""
        path = entry.path_of(self.folder, name)
        try:
            value = entry.read(path, name, self._started_ns)
        except OSError:
            return None
        if value is None:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return value

    def put(self, name: str, value: bytes) -> None:
        """Keep a value, unless there is no room for it or another process has it in hand."""
        record = KeptValue(name, entry.taken_bytes(entry.file_bytes(len(value))))
        if record.taken_bytes > self._max_bytes:
            return
        path = entry.path_of(self.folder, name)
        try:
            file = self._begin(record, path)
        except DamagedIndex:
            return
        if file is None:
            return
        try:
            # So that whoever makes the index anew meanwhile sees what it will take.
            os.ftruncate(file, entry.file_bytes(len(value)))
            entry.write(file, name, value)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: its record was oldest
                os.rename(path + _NEW, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path + _NEW)
            raise
        finally:
            os.close(file)

    def _begin(self, record: KeptValue, path: str) -> int | None:
        """Make room and a record. Returns the file to write, or None if it is not to be kept."""
        with self._locked(_PATIENCE_S) as index:
            if index is None or os.path.exists(path) or _is_in_hand(path + _NEW):
                return None
            has_room = self._make_room(index, record.taken_bytes)
            if has_room:
                index.append(record)
            index.commit()
            return _create(path + _NEW) if has_room else None

    @contextlib.contextmanager
    def _locked(self, patience_s: float) -> Iterator[Index | None]:
        """Hold the lock, with the index; None if others have held it all the time."""
        lock = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not _lock(lock, patience_s):
                yield None
                return
            index = Index(os.path.join(self.folder, "index"))
            try:
                if not index.load():
                    index.replace(self._found())
                yield index
            finally:
                index.close()
                # Not by closing alone: a child that was forked just now has a copy of it.
                fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            os.close(lock)

    def _make_room(self, index: Index, taken_bytes: int) -> bool:
        """Delete old values until there is room. Returns False if those are worth as much."""
        self._shrink_to(index, self._max_bytes)
        room_bytes = self._max_bytes - taken_bytes
        for _ in range(_LOOK_AT):
            if index.total_bytes <= room_bytes:
                return True
            if self._spared >= len(index):
                return self._take_turn(index, room_bytes)
            oldest = index.take_oldest()
            if self._is_used(oldest):
                self._spared += 1
                index.append(oldest)
            else:
                self._spared = 0
                self._delete(oldest)
        return index.total_bytes <= room_bytes

    def _take_turn(self, index: Index, room_bytes: int) -> bool:
        """Let one new value in some have the place of what this run has used."""
        self._refused += 1
        if self._refused % _ONE_IN:
            return False
        self._shrink_to(index, room_bytes)
        return True

    def _shrink_to(self, index: Index, most_bytes: int) -> None:
        while index.total_bytes > most_bytes:
            self._delete(index.take_oldest())

    def _is_used(self, record: KeptValue) -> bool:
        try:
            used_ns = os.stat(entry.path_of(self.folder, record.name)).st_mtime_ns
        except OSError:
            return False
        return used_ns >= self._started_ns

    def _delete(self, record: KeptValue) -> None:
        path = entry.path_of(self.folder, record.name)
        # In the order in which a writer names it, which may be between its steps.
        for each in (path + _NEW, path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(each)

    def _found(self) -> Iterator[KeptValue]:
        """List the values that are there, the oldest first, and delete what dead processes left."""
        found = []
        for part in os.scandir(self.folder):
            if _FOLDER_NAME.fullmatch(part.name) and part.is_dir(follow_symlinks=False):
                found += [each for file in os.scandir(part.path) if (each := _look_at(file))]
        return (record for _, record in sorted(found))


def _look_at(file: os.DirEntry[str]) -> tuple[int, KeptValue] | None:
    """Return when a file was last used, and its record; None for one that is no value."""
    if not _FILE_NAME.fullmatch(file.name):
        return None
    if file.name.endswith(_NEW) and not _is_in_hand(file.path):
        return None
    try:
        about = file.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    name = os.path.basename(os.path.dirname(file.path)) + file.name.removesuffix(_NEW)
    return about.st_mtime_ns, KeptValue(name, entry.taken_bytes(about.st_size))


def _lock(file: int, patience_s: float) -> bool:
    """Get a flock. Returns False if others have it for longer; never waits for one that stopped."""
    deadline = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while not _try_lock(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True


def _try_lock(file: int) -> bool:
    try:
        with naming("flock", "or fetch without downloaded()"):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_in_hand(path: str) -> bool:
    """Returns True if a process that lives writes this file; what a dead one left is deleted."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        if not _try_lock(file):
            return True
        with contextlib.suppress(FileNotFoundError):  # it has got its own name meanwhile
            os.unlink(path)
        return False
    finally:
        os.close(file)


def _create(path: str) -> int:
    """Make a file, with a flock of it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        file = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, flags, 0o666)
    _try_lock(file)
    return file
