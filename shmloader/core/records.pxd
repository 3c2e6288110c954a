# Records into a file, and one by itself.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    BLOCK_SHIFT = 12
    BLOCK_RECORDS = 1 << BLOCK_SHIFT   # that one block of the index is for
    RECORDS_START = 128                # in the file: the header of data/record_file.py comes first

cdef struct BlockEntry:
    int64_t at         # where the block of the index lies
    uint64_t checksum
