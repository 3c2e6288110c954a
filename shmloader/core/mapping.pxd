# A segment's file mapped into this process.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmloader.core.csrc cimport geometry, policy

cdef int measure(geometry *shape, uint32_t workers, uint32_t ranges,
                 uint64_t range_bytes) except -1
cdef int duplicate(int fd) except -1
cdef int measure_shape(geometry *measured, object shape) except -1
cdef int64_t count_slots(uint64_t total_bytes, uint64_t batch_bytes, const policy *numbers) noexcept
cdef void *map_segment(int fd, const geometry *shape)
cdef int raise_mapping_error(int fd, uint64_t length) except -1
cdef object errno_name(int error)
