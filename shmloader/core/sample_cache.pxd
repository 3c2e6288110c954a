# Samples that were fetched once, in a file that any number of processes map.

cimport cython
from libc.stdint cimport uint64_t

from shmloader.core.csrc cimport cache, cache_head, cache_record, cache_shape


@cython.final
cdef class SampleCache:
    cdef cache table
    cdef uint64_t owner       # the generation of the process that made it; 0: another process did
    cdef uint64_t full_for    # the generation that found no room for another record; 0: none did

    cdef int map_file(self, int fd, cache_shape *shape) except -1
    cdef int name(self, about) except -1
    cdef object copy_out(self, uint64_t index, const cache_record *record, Unpickler)
    cdef int broken(self, uint64_t index, str what) except -1
    cdef uint64_t find_room(self, uint64_t bytes_, has_room) except? 0
    cdef uint64_t add_piece(self, uint64_t bytes_) except? 0
