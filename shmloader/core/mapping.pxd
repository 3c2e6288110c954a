# A segment's file mapped into this process.

from libc.stdint cimport uint64_t

cdef int duplicate(int fd) except -1
cdef void *map_segment(int fd, uint64_t length)
cdef int raise_mapping_error(int fd, uint64_t length) except -1
cdef object note_segment(size_t base, size_t length)
cdef object errno_name(int error)
