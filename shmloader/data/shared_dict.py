"""`SharedDict`: a mapping whose keys and values lie once in memory, beside `SharedList`."""

import operator
import zlib
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Generic, TypeVar

import numpy
from numpy.typing import NDArray

from shmloader.data import record_file
from shmloader.data.shared_list import SharedList

Key = TypeVar("Key", bound=int | str)
Value = TypeVar("Value")

_MISSING = object()
_KEYS_MAX = 1 << 31  # what positions of 32 bits reach
_FACTOR = 0x9E3779B97F4A7C15  # of Fibonacci hashing
_WORD = (1 << 64) - 1


class SharedDict(Mapping[Key, Value], Generic[Key, Value]):
    """
    A dict whose keys and values are stored once in memory, for all processes that read it.

    Keys are ints or strings. A hash table in the same memory finds them, with a hash of its own:
    Python's hash of a string differs from process to process. Each read of a value makes a new
    object. The order is that of the dict from which it was made. It cannot be changed.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        mapping: Mapping[Key, Value] | Iterable[tuple[Key, Value]],
        *,
        default_factory: Callable[[], Value] | None = None,
    ) -> None:
        """
        Write the keys and values of a mapping into shared memory.

        Args:
            mapping: Of ints and strings to anything that `SharedList` takes; or pairs, as dict().
            default_factory: Makes the value of a key that is missing, as of a `defaultdict`; it
                is returned and not kept.

        Raises:
            TypeError: A key is neither an int nor a str, or these are neither mapping nor pairs.
            ValueError: There are more than 2³¹ keys, or a pair is none.
            OutOfSharedMemory: There is no room for them.
        """
        given: Any = mapping if hasattr(mapping, "items") else dict(mapping)
        if len(given) > _KEYS_MAX:
            raise ValueError(f"{len(given)} keys: a SharedDict has at most {_KEYS_MAX}")
        self.default_factory = default_factory
        self._count = len(given)
        file = record_file.build(_records_of(given), None, of_each=2)
        self._records: SharedList[Any] = SharedList._of(file)
        self._look_up_table()

    def _look_up_table(self) -> None:
        # Views of the memory, so they are shared; a memoryview's items come sooner than an array's.
        self._ends: memoryview | None = memoryview(self._records[-2])
        self._order: memoryview | None = memoryview(self._records[-1])
        self._buckets = len(self._ends) - 1

    def __getitem__(self, key: Key) -> Value:
        place = self._find(key)
        if place is not None:
            value: Value = self._records[2 * place + 1]
            return value
        if self.default_factory is not None:
            return self.default_factory()
        raise KeyError(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or the default if it is missing."""
        place = self._find(key)
        return default if place is None else self._records[2 * place + 1]

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Key]:
        return iter(self._records[0 : 2 * self._count : 2])

    def items(self) -> ItemsView[Key, Value]:
        """Return the keys with their values, read in the order of the memory."""
        return _Items(self)

    def values(self) -> ValuesView[Value]:
        """Return the values, read in the order of the memory."""
        return _Values(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys, the values and the table."""
        return self._records.nbytes

    def close(self) -> None:
        """Free the memory."""
        self._ends = self._order = None
        self._records.close()

    def _find(self, key: Any) -> int | None:
        """Return the position of a key, or None."""
        kind = type(key)
        if kind is not int and kind is not str:
            key = _plain(key)
            if key is _MISSING:
                return None
        ends, order = self._ends, self._order
        if ends is None or order is None:
            raise ValueError("this dict was closed")
        bucket = _sum_of(key) % self._buckets
        for at in range(ends[bucket], ends[bucket + 1]):
            place: int = order[at]
            if self._records[2 * place] == key:
                return place
        return None

    def __copy__(self) -> "SharedDict[Key, Value]":
        return _made(type(self), self._records, self._count, self.default_factory)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedDict[Key, Value]":
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._records, self._count, self.default_factory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} keys, {self.nbytes / 1e6:.1f} MB>"


class _Items(ItemsView[Any, Any]):
    """Reads values by their positions; Mapping's own view looks each key up."""

    _mapping: SharedDict[Any, Any]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        records = iter(self._mapping._records[: 2 * len(self)])
        return zip(records, records, strict=True)


class _Values(ValuesView[Any]):
    """Reads values by their positions, too."""

    _mapping: SharedDict[Any, Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping._records[1 : 2 * len(self) : 2])


def _made(
    kind: type[SharedDict[Any, Any]], records: SharedList[Any], count: int, default_factory: Any
) -> SharedDict[Any, Any]:
    made = kind.__new__(kind)
    made.default_factory, made._count, made._records = default_factory, count, records
    made._look_up_table()
    return made


def _records_of(mapping: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield each key and its value, and then the table."""
    sums = numpy.empty(len(mapping), numpy.uint64)
    for place, (key, value) in enumerate(mapping.items()):
        if type(key) is not int and type(key) is not str:
            kind = type(key).__name__
            raise TypeError(f"the key {key!r} is a {kind}: a SharedDict has ints and strings")
        sums[place] = _sum_of(key)
        yield key
        yield value
    yield from _table_of(sums)


def _table_of(sums: NDArray[numpy.uint64]) -> Iterator[NDArray[numpy.uint32]]:
    """
    Yield where each bucket's keys end in the order of buckets, and the positions in that order.

    The first number is where those of the first bucket begin.
    """
    buckets = (sums % numpy.uint64(max(1, len(sums)))).astype(numpy.uint32)
    counts = numpy.bincount(buckets, minlength=max(1, len(sums)))
    yield numpy.concatenate([[0], numpy.cumsum(counts)]).astype(numpy.uint32)
    yield numpy.argsort(buckets, kind="stable").astype(numpy.uint32)


def _plain(key: Any) -> Any:
    """Return the int or str that a dict would find for an equal key, such as 3.0 or True."""
    if isinstance(key, str):
        return str(key)
    try:
        return operator.index(key)
    except TypeError:
        is_whole = isinstance(key, float) and key.is_integer()
        hash(key)  # as a dict refuses a list
        return int(key) if is_whole else _MISSING


def _sum_of(key: int | str) -> int:
    """Sum up a key, in the same way in every process."""
    if isinstance(key, int):
        return ((key * _FACTOR) & _WORD) >> 20
    return zlib.crc32(key.encode("utf-8", "surrogatepass"))
