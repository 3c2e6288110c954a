"""
Where publishers and subscribers of one user meet: a socket by a name, in a folder of this user's.

Only processes of the same user are listened to, by what the kernel says of the other end. What is
said here are records of JSON, and descriptors with them; the batches go another way.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shmloader.core import Descriptor
from shmloader.processes.watching import is_running

_RECORD_BYTES = 65536
_PATH_MAX = 107  # bytes of a socket's address
_PIDFD_OF_PEER = 77  # SO_PEERPIDFD, which Python does not name
_LOOK_S = 0.05  # between two looks for a publisher that is not there yet
_BIND_S = 10.0  # how long others may take to bind


def path_of(name: str) -> Path:
    """
    Find the socket of a name.

    Raises:
        ValueError: It is no name.
        PermissionError: The folder is not this user's alone.
    """
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name of a publisher: use letters, such as 'trials'")
    folder = Path(tempfile.gettempdir()) / f"shmloader-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_folder(folder)
    path = folder / name
    if len(os.fsencode(path)) > _PATH_MAX:
        raise ValueError(f"{path} is too long for a socket: at most {_PATH_MAX} bytes")
    return path


def _check_folder(folder: Path) -> None:
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & 0o077:
        raise PermissionError(
            errno.EACCES,
            f"{folder} is not a folder of this user's alone, so other users could take the names "
            "of publishers: remove it, or set TMPDIR to another folder",
        )


class Peer:
    """
    The process at the other end of a connection.

    Attributes:
        pid: The process.
        socket: The connection, which does not block.
    """

    def __init__(self, connection: socket.socket) -> None:
        """
        Take over a connection.

        Raises:
            PermissionError: The process is another user's.
            OSError: It is not seen from here, as in a container with pids of its own.
        """
        connection.setblocking(False)
        self.socket = connection
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid, user, _ = struct.unpack("3i", found)
        if user != os.geteuid():
            raise PermissionError(errno.EACCES, f"process {self.pid} is of another user, {user}")
        if self.pid <= 0:
            raise OSError(
                errno.ESRCH,
                "the process at the other end cannot be seen from here, so its death could not: "
                "run both in one pid namespace (docker run --pid=host or --pid=container:...)",
            )
        self._end = Descriptor(self._open_pidfd())

    def _open_pidfd(self) -> int:
        with contextlib.suppress(OSError):
            found = self.socket.getsockopt(socket.SOL_SOCKET, _PIDFD_OF_PEER, 4)
            return int.from_bytes(found, "little")
        try:
            return os.pidfd_open(self.pid)  # an older kernel
        except ProcessLookupError:
            return -1

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, whatever processes it forked live on."""
        if self._end.number < 0:
            return True
        poll = select.poll()
        poll.register(self._end.number, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, record: dict[str, Any], *descriptors: int) -> None:
        """Send a record, and descriptors with it; at once."""
        text = json.dumps(record).encode()
        socket.send_fds(self.socket, [text], list(descriptors), socket.MSG_DONTWAIT)

    def receive(self) -> tuple[dict[str, Any], list[Descriptor]] | None:
        """Take the next record; None if none has come. The other end's close is an empty one."""
        try:
            text, numbers, _, _ = socket.recv_fds(self.socket, _RECORD_BYTES, 4)
        except BlockingIOError:
            return None
        except ConnectionError:
            return {}, []
        return json.loads(text or "{}"), [Descriptor(number) for number in numbers]

    def close(self) -> None:
        """Know it no more."""
        self.socket.close()
        self._end.close()


class Meeting:
    """A publisher's socket by its name."""

    def __init__(self, name: str) -> None:
        """
        Take a name, even from a publisher that is dead.

        Raises:
            FileExistsError: A publisher that lives has it.
            ValueError, PermissionError: As `path_of`.
        """
        self._path = path_of(name)
        self._owner = os.getpid()
        self._socket = _socket()
        try:
            with _alone(self._path.parent):
                _clear(self._path)
                self._socket.bind(os.fspath(self._path))
                self._inode = self._path.lstat().st_ino
                self._socket.listen(128)
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def accept(self) -> Iterator[Peer]:
        """Take the processes that have connected since the last call, those of other users not."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._socket.accept()
                try:
                    yield Peer(connection)
                except OSError:
                    connection.close()

    def close(self) -> None:
        """Give the name back, unless it has another owner by now or this is a forked child."""
        self._socket.close()
        with contextlib.suppress(OSError):
            if os.getpid() == self._owner and self._path.lstat().st_ino == self._inode:
                self._path.unlink()


def _socket() -> socket.socket:
    # Records are kept apart, so that none is ever half there.
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep two publishers from taking a dead one's name at the same time."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + _BIND_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                select.poll().poll(1000 * _LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _clear(path: Path) -> None:
    """Remove a socket of a publisher that has ended."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), _socket() as trial:
        trial.connect(os.fspath(path))
        found = trial.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, _, _ = struct.unpack("3i", found)
        # The workers of a dead one may listen for a moment yet.
        if pid <= 0 or is_running(pid, None):
            raise FileExistsError(
                errno.EEXIST,
                f"process {pid} publishes as {path.name!r} already: choose another name, or end it",
            )
    path.unlink(missing_ok=True)


def connect(name: str, timeout_s: float) -> Peer:
    """
    Connect to a publisher, and wait for one to come.

    Raises:
        TimeoutError: None came in time.
        OSError: As for `Peer`.
        ValueError, PermissionError: As `path_of`.
    """
    path = path_of(name)
    deadline = time.monotonic() + timeout_s
    while True:
        trial = _socket()
        try:
            trial.connect(os.fspath(path))
            return Peer(trial)
        except (FileNotFoundError, ConnectionRefusedError):
            trial.close()
        except BaseException:
            trial.close()
            raise
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"no publisher has come by the name {name!r} within {timeout_s:g} s (it would "
                f"listen at {path}): start shmloader.publish(loader, {name!r}, subscribers=...) in "
                "another process of this user, or wait longer with timeout="
            )
        select.poll().poll(1000 * _LOOK_S)
