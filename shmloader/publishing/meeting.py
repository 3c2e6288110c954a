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
import socket
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shmloader.core import Descriptor, poll
from shmloader.processes.channel import Channel
from shmloader.processes.watching import wait_until

_RECORD_BYTES = 65536
_PATH_MAX = 107  # bytes of a socket's address
_PIDFD_OF_PEER = 77  # SO_PEERPIDFD, which Python does not name
_LOOK_S = 0.05  # between two looks for a publisher that is not there yet
_BIND_S = 10.0  # how long others may take to bind


def path_of(name: str) -> Path:
    """Find the socket of a name, and refuse what is none, or a folder of other users too."""
    if not isinstance(name, str):
        raise TypeError(f"name should be a str, such as 'trials', but got {name!r}")
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a name of a publisher: use letters, such as 'trials'")
    folder = Path(tempfile.gettempdir()) / f"shmloader-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & 0o077:
        raise PermissionError(
            errno.EACCES,
            f"{folder} does not belong to this user alone, so other users could take the names of "
            "publishers: remove it, or set TMPDIR to another folder",
        )
    path = folder / name
    if len(os.fsencode(path)) > _PATH_MAX:
        raise ValueError(f"{path} is too long for a socket: at most {_PATH_MAX} bytes")
    return path


class Peer:
    """
    The process at the other end of a connection.

    Attributes:
        pid: The process; 0 if it is in a container with pids of its own.
    """

    def __init__(self, connection: Channel) -> None:
        """Take over a connection; refuse processes of other users, and what cannot be watched."""
        connection.setblocking(False)
        self._socket = connection
        self.pid, user = _owner_of(connection)
        if user != os.geteuid():
            raise PermissionError(errno.EACCES, f"process {self.pid} is of another user, {user}")
        self._end = Descriptor(self._open_pidfd())

    def _open_pidfd(self) -> int:
        with contextlib.suppress(OSError):
            found = self._socket.getsockopt(socket.SOL_SOCKET, _PIDFD_OF_PEER, 4)
            return int.from_bytes(found, sys.byteorder)
        if self.pid <= 0:  # an older kernel
            raise OSError(
                errno.EOPNOTSUPP,
                "the process at the other end cannot be seen from this process, so its death "
                "would not be noticed: run both in one pid namespace (docker run --pid=host or "
                "--pid=container:...)",
            )
        return os.pidfd_open(self.pid)

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, whatever processes it forked live on, or has left."""
        # The socket hangs up by close() alone: its children could not.
        return bool(poll([self._end], hanging=[self._socket]))

    def send(self, record: dict[str, Any], *descriptors: int) -> None:
        """Send a record, and descriptors with it; at once."""
        self._socket.say(json.dumps(record).encode(), list(descriptors))

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], list[Descriptor]] | None:
        """Wait for the next record; None: none has come. If the other end has left, it is empty."""
        if not poll([self._socket], timeout_s):
            return None
        try:
            text, numbers = self._socket.hear(_RECORD_BYTES, 1)
        except ConnectionResetError:  # said once, if it has not read all: what it sent is here
            return self.receive(0) or ({}, [])
        return json.loads(text or "{}"), [Descriptor(number) for number in numbers]

    def close(self) -> None:
        """Know it no more, and let it know."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # even if a forked child has it too
        self._socket.close()
        self._end.close()


def connect(name: str, timeout_s: float) -> Peer:
    """Connect to a publisher, and wait for one to come."""
    address = os.fspath(path_of(name))
    until = time.monotonic() + timeout_s
    while (peer := _peer_at(address)) is None:
        if time.monotonic() > until:
            raise TimeoutError(
                f"no publisher has come with the name {name!r} within {timeout_s:g} s (it would "
                f"listen at {address}): start shmloader.publish(loader, {name!r}, "
                "subscribers=...) in another process of this user, or wait longer with timeout="
            )
        wait_until(lambda: False, _LOOK_S)
    return peer


def _peer_at(address: str) -> Peer | None:
    """Connect to the process that listens there; None: there is none that lives."""
    connection = Channel.new()
    try:
        connection.connect(address)
        peer = Peer(connection)
        if not peer.has_ended:  # a child that it forked may hold its socket
            return peer
    except (FileNotFoundError, ConnectionRefusedError, ProcessLookupError):
        pass
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


class Meeting:
    """A publisher's socket by its name."""

    def __init__(self, name: str) -> None:
        """Take a name, even from a publisher that is dead, and from no other."""
        self._path = path_of(name)
        self._socket = Channel.new()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            with contextlib.closing(Descriptor.opened(os.open, self._path.parent, flags)) as folder:
                # Otherwise two publishers could take a dead one's name at the same time.
                wait_until(lambda: _has_locked(folder), _BIND_S)
                _clear(self._path)
                self._socket.bind(os.fspath(self._path))
                self._inode = self._path.lstat().st_ino
                self._socket.listen(128)
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def accept(self) -> list[Peer]:
        """Take the processes that have connected since the last call; others are told why not."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                connection = self._socket.accept()
                try:
                    found.append(Peer(connection))
                except OSError as error:
                    with contextlib.suppress(OSError):
                        connection.send(json.dumps({"refused": error.strerror}).encode())
                    connection.close()
        return found

    def close(self) -> None:
        """Give the name back, unless it has another owner by now; who waits for an answer hears."""
        if self._socket.fileno() >= 0:  # or an interrupt came in the middle of this
            # Even if a forked child has it too: otherwise who has just connected would wait on.
            self._socket.shutdown(socket.SHUT_RDWR)
            for peer in self.accept():
                peer.close()
        self._socket.close()
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()


def _has_locked(folder: Descriptor) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _clear(path: Path) -> None:
    """Remove a socket of a publisher that has ended."""
    peer = _peer_at(os.fspath(path))
    if peer is not None:
        peer.close()
        raise FileExistsError(
            errno.EEXIST,
            f"process {peer.pid} publishes as {path.name!r} already: choose another name, or end "
            "it",
        )
    path.unlink(missing_ok=True)


def _owner_of(connection: Channel) -> tuple[int, int]:
    """Ask the kernel for pid and user of the process that connected, or listened."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", told)
    return pid, user
