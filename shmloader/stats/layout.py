"""The bytes that viewers may read of a segment, as numpy's types."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import numpy.typing

# Reads so many bytes at an offset of a segment; fewer come at its end.
Read = Callable[[int, int], bytes]
Records = numpy.typing.NDArray[numpy.void]

_READINGS = 64  # of a struct that changes meanwhile; each takes a few microseconds


class Layout:
    """The structs that viewers may read, by name."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        """Take over the table of `core.view_layout()`."""
        self.checksum: int = described["checksum"]  # of all that follows
        self.magic: int = described["magic"]  # what the first struct of a segment says
        unknown = described["unknown"]  # what stands for values that are not known
        self.no_number, self.no_index = unknown["number"], unknown["index"]
        self.no_position = unknown["position"]
        self._parts = described["parts"]
        self._types: dict[str, numpy.dtype[numpy.void]] = {}

    def dtype(self, part: str) -> numpy.dtype[numpy.void]:
        """numpy's type of a struct."""
        if part not in self._types:
            described = self._parts[part]
            formats, offsets = zip(*described["fields"].values(), strict=True)
            names = list(described["fields"])
            fields = {"names": names, "formats": list(formats), "offsets": list(offsets)}
            self._types[part] = numpy.dtype({**fields, "itemsize": described["bytes"]})  # type: ignore[call-overload]
        return self._types[part]

    def offset(self, block: str, part: str) -> int:
        """Where a struct begins in its block, `control` or `worker`."""
        return int(self._parts[block]["fields"][part][1])

    def values(self, part: str, data: bytes) -> dict[str, Any]:
        """Read the fields of one struct."""
        return self.named(numpy.frombuffer(data, self.dtype(part), count=1)[0])

    @staticmethod
    def named(struct: numpy.void) -> dict[str, Any]:
        """Name the values of a struct."""
        return {name: struct[name].tolist() for name in struct.dtype.names or ()}

    def records(self, data: bytes) -> Records:
        """Read the records of a log that was copied in one piece, oldest first."""
        found = numpy.frombuffer(data, self.dtype("log_record"))
        return in_order(found)


def in_seconds(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn fields in nanoseconds, whose names end in `_ns`, into those in seconds, `_s`."""
    found = {}
    for name, value in values.items():
        stem = name.removesuffix("_ns")
        found.update({name: value} if stem == name else {f"{stem}_s": value / 1e9})
    return found


def in_order(records: Records) -> Records:
    """Drop the records that were never written, or not to their end; sort the others by age."""
    numbers = records["sequence"]
    whole: Records = records[(numbers > 0) & (numbers % 2 == 0)]
    return whole[numpy.argsort(whole["sequence"], kind="stable")]


def read_struct(read: Read, layout: Layout, part: str, offset: int) -> dict[str, Any] | None:
    """
    Read a struct with a sequence number that another process may be writing.

    Two readings that are equal, with an even number, hold what was written at once. Returns None
    without such ones: it is written faster than one can read, or its writer died in the middle.
    """
    size = layout.dtype(part).itemsize
    for _ in range(_READINGS):
        first, second = read(size, offset), read(size, offset)
        if first != second or len(first) != size:
            continue
        if int.from_bytes(first[:8], "little") % 2 == 0:
            return layout.values(part, first)
    return None


def read_log(read: Read, layout: Layout, offset: int, count: int) -> Records:
    """Read the records of a log that another process writes, oldest first."""
    dtype = layout.dtype("log_record")
    first, second = read(count * dtype.itemsize, offset), read(count * dtype.itemsize, offset)
    whole = min(len(first), len(second)) // dtype.itemsize * dtype.itemsize
    if not whole:
        return numpy.empty(0, dtype)
    rows = [
        numpy.frombuffer(data[:whole], numpy.uint8).reshape(-1, dtype.itemsize)
        for data in (first, second)
    ]
    # A record that is written now is the newest or one that it replaces: it is left out.
    equal = (rows[0] == rows[1]).all(axis=1)
    return in_order(numpy.frombuffer(first[:whole], dtype)[equal])
