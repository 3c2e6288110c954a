# Records into a file, and one by itself.

cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    BLOCK_SHIFT = 12
    BLOCK_RECORDS = 1 << BLOCK_SHIFT   # that one block of the index is for
    RECORDS_START = 128                # in the file: the header of data/record_file.py comes first

cdef struct BlockEntry:
    int64_t at         # where the block of the index lies
    uint64_t checksum


@cython.final
cdef class RecordWriter:
    cdef object sink
    cdef object Pickler
    cdef Encoder encoder
    cdef char *buffer
    cdef size_t used              # of the buffer
    cdef int64_t *starts          # of the records of this block, and the end of the last one
    cdef Py_ssize_t in_block
    cdef bytearray table          # a BlockEntry for each block
    cdef bint is_broken           # the sink failed: what it has is not known

    cdef readonly Py_ssize_t count   # of records
    cdef readonly uint64_t position  # where the next bytes go, in the file

    cdef int write_record(self, Encoder encoder) except -1
    cdef int write_large(self, Encoder encoder, uint64_t length) except -1
    cdef int write(self, const char *start, uint64_t length) except -1
    cdef int write_zeros(self, uint64_t length) except -1
    cdef int flush(self) except -1
    cdef int pass_on(self, const char *start, uint64_t length) except -1
    cdef int end_block(self) except -1
    cdef int align(self) except -1


@cython.final
cdef class PackedRecord:
    cdef Encoder encoder
    cdef readonly uint64_t length   # in bytes
