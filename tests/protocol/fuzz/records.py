"""
Any bytes as a record of a list: what reading it may make of them, and what it must not.

An input is packed as one of layouts.py: a header, then the names, then a record. The header says
how the record is read, and which fields of the file are not true. `Reader.run` makes a file of it,
in which all checksums are right, maps it, and reads every byte of every tensor and array that comes
out. Or the record lies in a buffer by itself, as in a cache of samples.
"""

import ctypes
import mmap
import os
import pickle
import struct
import warnings
import zlib

import numpy

from shmloader import SharedList
from shmloader.core import DamagedRecord, PackedRecord, RecordWriter, pickling, unpack_record
from shmloader.data import record_file
from tests.helpers.forgery import LINE, round_up
from tests.protocol.fuzz import layouts, names
from tests.protocol.fuzz.layouts import Fence, Wrong, judge, leaves

ALONE = 1  # a bit of the mode: the record lies in a buffer, and is copied

BEGIN = 128  # of the records in a file, behind its header
INDEX = struct.Struct("<4Q")  # the starts of three records, and the end of the last one
TABLE = struct.Struct("<QQ")  # where the one block of the index lies, and its checksum

# The fields by number: of the header, of the table, and of the index.
FIELDS = ("records", "names_at", "names_bytes", "table_at", "block_at", *range(INDEX.size // 8))


def unpack(data):
    """Read an input of any length: (mode, fields by their names, names, record)."""
    mode, fields, packed_names, record = layouts.unpack(data)
    named = {FIELDS[number]: value for number, value in fields if number < len(FIELDS)}
    return mode, named, packed_names, record


def written(record):
    """Write a record into a file and return its names and bytes there."""
    file = bytearray()
    writer = RecordWriter(file.extend)
    writer.append(record)
    end = writer.position
    at, length, *_ = writer.finish()
    return bytes(file[at : at + length]), bytes(file[BEGIN:end])


def alone(record):
    """Write a record by itself."""
    return PackedRecord(record).tobytes()


class Reader:
    """Makes files and reads them."""

    def __init__(self):
        names.restrict(pickle, pickling)
        warnings.simplefilter("ignore")
        self._fence = Fence()
        # Ours: where this array lies tells where the file is mapped.
        _, self._known = written(numpy.arange(LINE, dtype=numpy.uint8))

    def run(self, data):
        """
        Read an input, and everything that comes out.

        Returns:
            The outcome, in a word.

        Raises:
            Wrong: Something happened that must not happen for any input.
        """
        mode, fields, packed_names, record = unpack(data)
        try:
            if mode & ALONE:
                # Bytes of its very length, so that AddressSanitizer sees a read beside it.
                read_all(unpack_record(bytes(record)))
            else:
                self._read_file(fields, packed_names, record)
        except Exception as error:
            if type(error) is ValueError and "is damaged" in str(error):
                return "damaged"
            return judge(error, DamagedRecord)
        finally:
            self._fence.lift()
        return "record"

    def _read_file(self, fields, packed_names, record):
        content, place = self._content(fields, packed_names, record)
        descriptor = os.memfd_create("fuzzed", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            # The file under this name is that of the descriptor: opened, checked, mapped.
            records = SharedList.from_file(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        with records:
            if fields:
                for number in range(min(len(records), 3)):
                    read_all(records[number])
                return
            known = records[0].__array_interface__["data"][0]
            base = known - content.index(bytes(range(LINE)))
            self._fence.close(base + place.stop, len(content) - place.stop)
            for start, count in read_all(records[1]):
                at = start - base
                if 0 <= at < len(content) and not place.start <= at <= at + count <= place.stop:
                    raise Wrong(f"a leaf of {count} bytes at {at} of a record in {place}")

    def _content(self, fields, packed_names, record):
        """Make a file: what is known, what leads to records, and the record, before empty pages."""
        known_end = BEGIN + len(self._known)
        index_at = round_up(known_end, LINE)
        names_at = index_at + INDEX.size
        table_at = round_up(names_at + len(packed_names), LINE)
        start = round_up(table_at + TABLE.size, LINE)
        end = start + len(record)
        total = round_up(end, mmap.PAGESIZE) + mmap.PAGESIZE
        starts = [fields.get(number, true) for number, true in enumerate((BEGIN, start, end, end))]
        index = INDEX.pack(*starts)
        table = TABLE.pack(fields.get("block_at", index_at), zlib.crc32(index))
        header = record_file.Header(
            records=fields.get("records", 3),
            total_bytes=total,
            names_at=fields.get("names_at", names_at),
            names_bytes=fields.get("names_bytes", len(packed_names)),
            names_sum=zlib.crc32(packed_names),
            table_at=fields.get("table_at", table_at),
            table_sum=zlib.crc32(table),
        )
        content = bytearray(total)
        for at, part in (
            (0, header.pack()),
            (BEGIN, self._known),
            (index_at, index),
            (names_at, packed_names),
            (table_at, table),
            (start, record),
        ):
            content[at : at + len(part)] = part
        return content, range(start, end)


def read_all(made):
    """Read every byte of every tensor and array; returns where they lie: (address, bytes) each."""
    places = list(leaves(made))
    for start, count in places:
        ctypes.string_at(start, count)
    return places
