# The samples of the batch in hand, one by one.

cimport cython
from libc.stdint cimport uint32_t


@cython.final
@cython.internal
cdef class Samples:
    cdef SlotMemory memory
    cdef list indices
    cdef uint32_t position
