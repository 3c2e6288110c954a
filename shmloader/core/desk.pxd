# The worker's end of a segment.

cimport cython
from libc.stdint cimport int64_t, uint32_t


@cython.final
cdef class Desk:
    cdef SlotMemory memory
    cdef unsigned long thread
    cdef int64_t taken_ns

    cdef bint park(self, double timeout_s, uint32_t *cell) except -1
    cdef object read_seed(self)
    cdef object begin(self, uint32_t slot)
    cdef int write_empty(self, int kind) except -1
