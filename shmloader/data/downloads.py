"""`downloaded()`: what was fetched once is read from a folder from then on."""

import operator
import os
import sys
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar

from shmloader.data.counts import Counts
from shmloader.data.shelf import Shelf
from shmloader.errors import warn
from shmloader.setup.arguments import check_count

Key = TypeVar("Key", bound=str | bytes | int)


class DownloadStats(NamedTuple):
    """
    What a cache of downloads did, in all processes that have this object.

    Attributes:
        hits: Values that were read from the folder.
        misses: Values that were fetched.
        bytes: What the folder keeps now, in bytes; other caches with the same folder share it.
    """

    hits: int
    misses: int
    bytes: int


class Downloads(Generic[Key]):
    """Calls a function for what its folder does not have. Made by `downloaded`."""

    def __init__(
        self, fetch: Callable[[Key], bytes], folder: str | os.PathLike[str], max_bytes: int
    ) -> None:
        """Open the folder, as `downloaded` says."""
        if sys.platform == "win32":
            raise OSError("downloaded() shares its folder by flock, which Windows lacks")
        most_bytes = check_count("max_bytes", max_bytes)
        self._fetch = fetch
        self._shelf = Shelf(os.path.abspath(folder), most_bytes, time.time_ns())
        self._shelf.prepare()
        self._counts = Counts.made_in(self._shelf.folder)
        self._says = True  # nothing was said yet about a folder that takes no values

    def __call__(self, key: Key) -> bytes:
        """
        Return the value of a key: from the folder, or fetched and kept there.

        Args:
            key: A str, bytes or an int, which fetch understands.

        Raises:
            TypeError: The key is of another type, or fetch returned no bytes.
            BaseException: What fetch raises.
        """
        name = name_of(key)
        value = self._shelf.get(name)
        if value is not None:
            self._counts.add(hits=1)
            return value
        value = _checked(self._fetch(key), key)
        self._counts.add(misses=1)
        self._keep(name, value)
        return value

    def stats(self) -> DownloadStats:
        """Return how many values were read and fetched, and the bytes that are kept."""
        hits, misses = self._counts.totals()
        return DownloadStats(hits, misses, self._shelf.total_bytes())

    def _keep(self, name: str, value: bytes) -> None:
        """Keep a value; a disk that is full or gone takes the cache away, never the value."""
        try:
            self._shelf.put(name, value)
        except OSError as error:
            if self._says:
                self._says = False
                warn(
                    f"downloads cannot be stored in {self._shelf.folder}: "
                    f"{error.strerror or error}. Values that are not in the folder are fetched "
                    "each time. Free space there, lower max_bytes, or name another folder"
                )


def downloaded(
    fetch: Callable[[Key], bytes], folder: str | os.PathLike[str], max_bytes: int
) -> Downloads[Key]:
    """
    Store what a function fetches in a folder of bounded size, for the next epoch and the next run.

    Call the result in a dataset, instead of fetch. Any number of processes and threads may use it
    at once, forked or spawned, and any of them may be killed at any moment. Each value has a
    checksum; a damaged value is fetched again. If two callers request the same key at the same
    time, both fetch it.

    When the folder is full, the oldest values are deleted for new ones. Values that this run of the
    program has used are deleted for one new value in eight only: an epoch requests each value once,
    so a stored value is worth as much as a new one.

    Args:
        fetch: Returns the bytes of a key: a str, bytes or an int. It is called on the caller's
            thread. If the value of a key may change, put a version into the key.
        folder: Where to store values, on a local disk; created if it does not exist. Several caches
            may share it if their keys mean the same.
        max_bytes: Most bytes that the files in the folder may take, each rounded up to 4 KiB. A
            larger value is returned and not stored.

    Returns:
        A function that takes a key, with `stats()`: hits, misses and bytes, of all its processes.
        It can be pickled if fetch can.

    Raises:
        OSError: The folder cannot be created, or cannot be written to. If that happens later, each
            process warns, and values are fetched and not stored.
        ValueError: max_bytes is below 1.
    """
    return Downloads(fetch, folder, max_bytes)


def name_of(key: Any) -> str:
    """Name the file of a key; keys of different types have different names."""
    if isinstance(key, str):
        packed = b"s" + key.encode("utf-8", "surrogatepass")
    elif isinstance(key, bytes):
        packed = b"b" + key
    else:
        try:
            packed = b"i%d" % operator.index(key)
        except TypeError:
            kind = type(key).__name__
            raise TypeError(f"the key {key!r} is a {kind}: give a str, bytes or an int") from None
    return blake2b(packed, digest_size=20).hexdigest()


def _checked(value: Any, key: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"fetch returned {type(value).__name__} for the key {key!r}, not bytes")
