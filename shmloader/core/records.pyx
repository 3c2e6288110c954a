# Records one after the other into a file that is written from its beginning to its end, and one
# record by itself.
#
# The file is the header, which comes last; then records, and after each BLOCK_RECORDS of them a
# block of the index: the int64 offset of each, and the end of the last one. So the index of any
# number of records needs no memory while they are written. After all records come the names, which
# are one more record, and the table of the blocks.
#
# A record is the stream of its nodes, and then its leaves, each aligned to its items in the file.

import zlib

cdef enum:
    BLOCK_SHIFT = 12
    BLOCK_RECORDS = 1 << BLOCK_SHIFT   # that one block of the index is for
    RECORDS_START = 128                # in the file: the header of data/record_file.py comes first
    BUFFER_BYTES = 1 << 20             # what is longer goes to the sink by itself
    PIECE_BYTES = 32 << 20             # the most that the sink is given at once

cdef struct BlockEntry:
    int64_t at         # where the block of the index lies
    uint64_t checksum


cdef object sum_of(const void *start, uint64_t length):
    return zlib.crc32(PyMemoryView_FromMemory(<char *>start, length, PyBUF_READ))


cdef Encoder record_encoder(dict names):
    return Encoder.__new__(Encoder, None, False, names)


cdef int encode_record(Encoder encoder, object record) except -1:
    """Write the nodes of a record, and note its leaves."""
    try:
        return encoder.put_whole(record)
    except BaseException:
        forget_record(encoder)
        raise


cdef int forget_record(Encoder encoder) except -1:
    """Drop what belongs to the last record."""
    encoder.begin_again()
    encoder.kept.clear()
    return 0


@cython.final
cdef class RecordWriter:
    """
    Writes records one after the other; needs a megabyte, however many there are.

    Attributes:
        count: Of the records so far.
        position: The length of the file so far, in bytes.
    """

    cdef object sink
    cdef Encoder encoder
    cdef char *buffer
    cdef size_t used              # of the buffer
    cdef int64_t *starts          # of the records of this block, and the end of the last one
    cdef Py_ssize_t in_block
    cdef bytearray table          # a BlockEntry for each block
    cdef bint is_broken           # the sink failed: what it has is not known

    cdef readonly Py_ssize_t count   # of records
    cdef readonly uint64_t position  # where the next bytes go, in the file

    def __cinit__(self):
        self.buffer = <char *>malloc(BUFFER_BYTES)
        self.starts = <int64_t *>malloc((BLOCK_RECORDS + 1) * sizeof(int64_t))
        if self.buffer == NULL or self.starts == NULL:
            raise MemoryError(f"no memory for a buffer of {BUFFER_BYTES} bytes")

    def __init__(self, sink):
        """
        Begin a file with room for its header.

        Args:
            sink: Called with the bytes of the file one after the other, each time as a memoryview
                that is good for the call alone.
        """
        self.sink = sink
        self.encoder = record_encoder({})
        self.table = bytearray()
        self.write_zeros(RECORDS_START)
        self.starts[0] = self.position

    def __dealloc__(self):
        free(self.buffer)
        free(self.starts)

    def append(self, record):
        """Write a record. If it cannot be encoded, none of it is written, and others may follow."""
        if self.is_broken:
            raise ValueError("the file could not be written")
        encode_record(self.encoder, record)
        try:
            self.write_record(self.encoder)
        except BaseException:
            self.is_broken = True
            raise
        finally:
            forget_record(self.encoder)
        self.count += 1
        self.in_block += 1
        self.starts[self.in_block] = self.position
        if self.in_block == BLOCK_RECORDS:
            self.end_block()

    def finish(self):
        """
        Write what comes after the records.

        Returns:
            Where in the file the names lie, the length of their record and its checksum; where the
            table lies, and its checksum.
        """
        cdef bytes packed = PackedRecord(list(self.encoder.names)).tobytes()
        if self.in_block > 0:
            self.end_block()
        self.align()
        names_at = self.position
        self.write(PyBytes_AS_STRING(packed), len(packed))
        self.align()
        table_at = self.position
        self.write(<char *>self.table, len(self.table))
        self.flush()
        return names_at, len(packed), zlib.crc32(packed), table_at, zlib.crc32(self.table)

    cdef int write_record(self, Encoder encoder) except -1:
        cdef uint64_t length = encoder.place_record(self.position)
        if length > BUFFER_BYTES:
            return self.write_large(encoder, length)
        if length > BUFFER_BYTES - self.used:
            self.flush()
        encoder.write_record(self.buffer + self.used, length)
        self.used += length
        self.position += length
        return 0

    cdef int write_large(self, Encoder encoder, uint64_t length) except -1:
        """Write a record from where its leaves lie."""
        cdef const Sources *sources = &encoder.sources
        cdef uint64_t begin = self.position
        cdef size_t first = 0
        cdef size_t after
        cdef char *end
        self.write(encoder.stream, encoder.used)
        while first < sources.count:
            after = end_of_stretch(sources, first, &end)
            self.write_zeros(begin + sources.items[first].offset - self.position)
            self.write(sources.items[first].start, end - sources.items[first].start)
            first = after
        return 0

    cdef int write(self, const char *start, uint64_t length) except -1:
        if length > BUFFER_BYTES - self.used:
            self.flush()
        if length > BUFFER_BYTES:
            self.pass_on(start, length)
        else:
            memcpy(self.buffer + self.used, start, length)
            self.used += length
        self.position += length
        return 0

    cdef int write_zeros(self, uint64_t length) except -1:
        """Write a few bytes of 0."""
        if length > BUFFER_BYTES - self.used:
            self.flush()
        memset(self.buffer + self.used, 0, length)
        self.used += length
        self.position += length
        return 0

    cdef int flush(self) except -1:
        cdef size_t used = self.used
        self.used = 0
        return self.pass_on(self.buffer, used)

    cdef int pass_on(self, const char *start, uint64_t length) except -1:
        cdef uint64_t piece
        while length > 0:
            piece = min(length, <uint64_t>PIECE_BYTES)
            self.sink(PyMemoryView_FromMemory(<char *>start, piece, PyBUF_READ))
            start += piece
            length -= piece
        return 0

    cdef int end_block(self) except -1:
        """Write the block of the index that the last records need, and begin another one."""
        cdef uint64_t length = (self.in_block + 1) * sizeof(int64_t)
        cdef BlockEntry entry
        self.align()
        entry.at = self.position
        entry.checksum = sum_of(self.starts, length)
        self.write(<char *>self.starts, length)
        self.table += (<char *>&entry)[:sizeof(BlockEntry)]
        self.in_block = 0
        self.starts[0] = self.position
        return 0

    cdef int align(self) except -1:
        return self.write_zeros(round_up(self.position, sizeof(int64_t)) - self.position)


cdef class PackedRecord:
    """
    One record by itself, of so many bytes; the object must not change until it is written.

    As a request, its tensors and arrays are copied once, into the slot, where the worker uses them.
    """

    cdef Encoder encoder
    cdef readonly uint64_t length   # in bytes

    def __init__(self, record):
        """
        Encode an object.

        Raises:
            Exception: The error of its own reduction.
        """
        self.encoder = record_encoder(None)
        encode_record(self.encoder, record)
        self.length = self.encoder.place_record(0)

    def tobytes(self):
        """Return its bytes, for `unpack_record`."""
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, self.length)
        self.encoder.write_record(PyBytes_AS_STRING(packed), self.length)
        return packed


cdef void write_placed(const void *record, uint8_t *to, uint64_t length) noexcept:
    (<PackedRecord><object>record).encoder.write_record(<char *>to, length)


cdef object describe_record(PackedRecord packed, record_writer *writer, Request *request):
    """Describe a record as a request; returns what must live until it is written."""
    writer.write, writer.record = write_placed, <const void *>packed
    request.kind, request.start, request.length = REQUEST_RECORD, <char *>writer, packed.length
    return packed


def unpack_record(bytes packed):
    """Make an object of a record that was packed by itself; it is a copy in private memory."""
    return decode_record(PyBytes_AS_STRING(packed), len(packed), NULL, None, None, True)
