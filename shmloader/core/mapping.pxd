# A segment's file mapped into this process.

from libc.stdint cimport uint32_t, uint64_t

from shmloader.core.csrc cimport geometry

cdef int measure(geometry *shape, uint32_t workers, uint32_t ranges,
                 uint64_t range_bytes) except -1
cdef int duplicate(int fd) except -1
cdef int measure_shape(geometry *measured, object shape) except -1
cdef void *map_segment(int fd, const geometry *shape)
cdef int raise_mapping_error(int fd, uint64_t length) except -1
cdef object errno_name(int error)
