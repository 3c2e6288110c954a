# A mapped file of records as a sequence.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

from posix.types cimport dev_t, ino_t

from shmloader.core.csrc cimport mapped


@cython.final
cdef class RecordFile:
    cdef mapped *map          # NULL: closed
    cdef Alias alias          # of all of it, the base of arrays
    cdef int fd
    cdef dev_t device         # of the descriptor's file
    cdef ino_t inode
    cdef object Unpickler
    cdef const BlockEntry *table
    cdef uint8_t *checked     # of each block of the index
    cdef tuple names

    cdef readonly Py_ssize_t count
    cdef readonly uint64_t bytes
    cdef readonly object name  # for errors
    cdef object __weakref__

    cdef bint has_descriptor(self) noexcept
    cdef void close_descriptor(self) noexcept
    cdef int read_names(self, uint64_t at, uint64_t length, object checksum) except -1
    cdef int read_table(self, uint64_t at, object checksum) except -1
    cdef const int64_t *find_block(self, Py_ssize_t number) except NULL
    cdef object read(self, Py_ssize_t number)


cdef class RecordList:
    cdef RecordFile file
    cdef Py_ssize_t start
    cdef Py_ssize_t step
    cdef Py_ssize_t count

    cdef object cut(self, object part)


@cython.final
@cython.internal
cdef class RecordIterator:
    cdef RecordList records
    cdef Py_ssize_t at
