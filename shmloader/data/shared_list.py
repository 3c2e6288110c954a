"""`SharedList`: records that lie once in memory, however many processes read them."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from shmloader.core import RecordFile, RecordList
from shmloader.data import record_file

Record = TypeVar("Record", covariant=True)


class SharedList(RecordList, Sequence[Record]):
    """
    A list whose records are stored once in memory, for all processes that read it.

    It holds bytes and no Python objects, so no reference count is written when a worker reads it,
    and no page is copied. Each read makes new objects of one record: a small one takes about a
    microsecond. Arrays and tensors in it are views of the memory. They may be written to; such a
    change is seen by this process alone, and by its later reads.

    A record may be made of dicts, lists, tuples, strings, bytes, numbers, None, arrays and tensors,
    however nested; whatever else is in it is pickled. Names of keys are stored once.

    Forked processes have it, and so does what `multiprocessing` starts with it or with something
    that refers to it, such as a dataset. Slices and copies share its memory. It cannot be changed.
    """

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as of a list: equal ones are equal

    def __init__(
        self, records: Iterable[Record], *, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """
        Write records into shared memory one after the other, each as soon as it is there.

        Args:
            records: Any iterable; of a generator only one record is in memory at a time.
            progress: Called about once a second, and at the end, with the records and the bytes so
                far.

        Raises:
            OutOfSharedMemory: There is no room for them.
            Exception: What the iterable raises, or an object that cannot be pickled.
        """
        if isinstance(records, SharedList):
            self._hold(records._file, records._part)
            return
        file = record_file.build(records, progress)
        self._hold(file, range(file.count))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "SharedList[Any]":
        """
        Open a file that `to_file` or `pack` has written, in milliseconds for any length.

        The file is mapped: pages are read from the disk when records are, so it may be larger than
        memory. Other processes receive it as a path. A file may hold pickles, so open only what
        you trust.

        Raises:
            OSError: The file does not exist, or cannot be read.
            ValueError: The file is not one of a SharedList, of another version, cut off, or
                damaged.
        """
        return cls._of(record_file.open_path(os.path.abspath(path)))

    @classmethod
    def pack(
        cls,
        records: Iterable[Any],
        path: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> "SharedList[Any]":
        """
        Write records into a file, and open it; they may be larger than memory.

        Args:
            records: Any iterable.
            path: The file, which appears when all is written; one of that name is replaced.
            progress: As of `SharedList`.

        Raises:
            OSError: The file cannot be written.
            Exception: What the iterable raises, or an object that cannot be pickled.
        """
        record_file.pack(records, os.path.abspath(path), progress)
        return cls.from_file(path)

    @classmethod
    def pack_folder(
        cls,
        folder: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> "SharedList[tuple[str, bytes]]":
        """
        Write all files of a folder into one file, and open it.

        A record is a tuple of a file's path below the folder, such as "cat/001.jpg", and its
        content as bytes. Files come in the order of their names, folder by folder.

        Args:
            folder: With folders in it, to any depth.
            path: The file, which appears when all is written; one of that name is replaced.
            progress: As of `SharedList`.

        Raises:
            OSError: A file cannot be read, or the new one cannot be written.
        """
        return cls.pack(_files_in(os.fspath(folder)), path, progress=progress)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """
        Write these records into a file for `from_file`; a file of that name is replaced at the end.

        Raises:
            OSError: The file cannot be written.
        """
        path = os.path.abspath(path)
        if self._part == range(self._file.count):
            record_file.copy_to(self._file, path)
        else:
            record_file.pack(iter(self), path, None)

    @property
    def nbytes(self) -> int:
        """Bytes of the records; a slice shares them with its list."""
        return self._file.bytes

    def close(self) -> None:
        """Free the memory, also of slices and copies in this process; values stay valid."""
        self._file.close()

    def __enter__(self) -> "SharedList[Record]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if TYPE_CHECKING:  # they are the compiled base's, without a call of Python's

        @overload
        def __getitem__(self, index: int) -> Record: ...
        @overload
        def __getitem__(self, index: slice) -> "SharedList[Record]": ...
        def __getitem__(self, index: Any) -> Any: ...
        def __iter__(self) -> Iterator[Record]: ...

    def __eq__(self, other: object) -> bool:
        """Compare as lists do: record by record, with another one or with a list."""
        if not isinstance(other, (SharedList, list)):
            return NotImplemented
        if len(self) != len(other):
            return False
        if isinstance(other, SharedList) and (self._file, self._part) == (other._file, other._part):
            return True
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __copy__(self) -> "SharedList[Record]":
        return self[:]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedList[Record]":
        return self[:]

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._file, self._part)

    def __repr__(self) -> str:
        if self._file.is_closed:
            return f"<closed {type(self).__name__}>"
        records = f"{len(self)} records"
        if len(self) != self._file.count:
            records = f"{len(self)} of {self._file.count} records"
        where = self._file.name
        where = "in memory" if where == record_file.IN_MEMORY else f"in {where}"
        return f"<{type(self).__name__} of {records}, {self.nbytes / 1e6:.1f} MB {where}>"

    @classmethod
    def _of(cls, file: RecordFile) -> "SharedList[Any]":
        return _made(cls, file, range(file.count))


def _made(kind: type[SharedList[Any]], file: RecordFile, part: range) -> SharedList[Any]:
    made = kind.__new__(kind)
    made._hold(file, part)
    return made


def _files_in(folder: str) -> Iterator[tuple[str, bytes]]:
    """Read the files of a folder one by one."""

    def fail(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                yield os.path.relpath(path, folder).replace(os.sep, "/"), file.read()
